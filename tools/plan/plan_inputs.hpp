#pragma once

/// @file
/// The inputs of `kvarena plan` from the command line: models by name, file or numbers; memory by a
/// GPU's name, a present GPU or bytes; lengths from a trace.

#include "tools/console.hpp"

#include "base/finding.hpp"
#include "trace/trace_reader.hpp"

#include "kvarena/capacity/model_spec.hpp"

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// The reason why an input cannot be used, and its exit code.
struct PlanRefusal {
  Finding what;
  ExitCode code = ExitCode::usage;
};

/// Memory to plan for.
struct PlannedMemory {
  std::string name;        ///< "H100-SXM", "cuda:0 (NVIDIA H200)", "24.00 GiB"
  std::int64_t bytes = 0;  ///< as CUDA tells a process
  std::int32_t num_sms =
      132;  ///< multiprocessors; for a plain size those of an H100 or H200; 0: no CUDA
  bool from_driver = false;  ///< nvidia-smi's total: up to 2 % more than CUDA gives a process
};

/// Returns the memory that `text` names: a preset, auto or cuda:N, or a size; or why it is unknown.
std::optional<PlannedMemory> find_memory(const std::string& text, PlanRefusal& refusal);
/// What is wrong with `text` as a name of memory, before any card is asked; nothing: it is one.
Finding memory_finding(const std::string& text);

/// Returns the model that `text` names, a preset or a file; or why there is none.
std::optional<capacity::ModelSpec> find_model(const std::string& text, PlanRefusal& refusal);
/// What is wrong with `text` as a name of a model; nothing: it is a preset, or names what is there.
Finding model_finding(const std::string& text);

/// `ModelNumbers`: a model by the numbers of its layers on the command line, and the weights of
/// models whose files and presets do not tell them. Zeros mean "not given".
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

/// Lengths of a trace's requests.
struct TraceLengths {
  /// Of one request.
  struct Length {
    std::int64_t tokens = 0;         ///< prompt and output
    std::int64_t prompt_tokens = 0;  ///< prompt
    friend auto operator<=>(const Length&, const Length&) = default;
  };
  std::int64_t requests = 0;         ///< read
  std::int64_t prompt_tokens = 0;    ///< of all of them
  std::vector<Length> lengths = {};  ///< ascending
  /// The smallest length with at least `percent` of the lengths at or below it (nearest rank).
  const Length& at_percentile(double percent) const;
};

/// Reads a trace, or says why it cannot.
std::optional<TraceLengths> read_lengths(const trace::TraceReaderOptions& trace,
                                         PlanRefusal& refusal);

}  // namespace kvarena::tools
