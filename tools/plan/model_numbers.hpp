#pragma once

/// @file
/// `ModelNumbers`: a model by the numbers of its layers on the command line, and the parameters of
/// models whose files and presets do not tell them.

#include "tools/console.hpp"

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
  /// names one; --parameters goes with both.
  void declare(CLI::App& command, CLI::Option& model);
  /// Whether any number of the layers was given.
  bool any() const noexcept;
  /// The model, or what is wrong or missing, reported on the console.
  std::optional<capacity::ModelSpec> model(const Console& console) const;
  /// Gives a model of which neither parameters nor weights are known exactly those of
  /// --parameters. Others stay as they are, with a note.
  void add_parameters(capacity::ModelSpec& model) const;

 private:
  bool is_complete(const Console& console) const;

  capacity::TransformerShape shape_;
  std::int32_t window_ = 0;
  std::int64_t parameters_ = 0;
};

}  // namespace kvarena::tools
