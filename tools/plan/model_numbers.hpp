#pragma once

/// @file
/// `ModelNumbers`: a model by the numbers of its layers on the command line, and the weights of
/// models whose files and presets do not tell them.

#include "base/finding.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// What was given on the command line; zeros mean "not given".
class ModelNumbers {
 public:
  /// Declares --layers and the others on `command`. Those of the layers exclude `model`, which
  /// names one; --parameters and --weights-bytes go with both.
  void declare(CLI::App& command, CLI::Option& model);
  /// Whether any number of the layers was given.
  bool any() const noexcept;
  /// The model, or what is wrong or missing.
  std::optional<capacity::ModelSpec> model(Finding& refusal) const;
  /// Sets the parameters of --parameters when the model's parameters and weights are unknown, and
  /// the bytes of --weights-bytes for any model. Adds a note about an option that is not used.
  void add_weights(capacity::ModelSpec& model) const;

 private:
  bool is_complete(Finding& refusal) const;

  capacity::TransformerShape shape_;
  std::int32_t window_ = 0;
  std::int64_t parameters_ = 0;
  std::optional<std::int64_t> weights_bytes_;
};

}  // namespace kvarena::tools
