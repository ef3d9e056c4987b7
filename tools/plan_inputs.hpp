#pragma once

/// @file
/// What `kvarena plan` plans for, from words on the command line: models by name, file or numbers;
/// memory by a GPU's name, the card present, or bytes; lengths from a trace.

#include "console.hpp"
#include "exit_codes.hpp"

#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvarena::tools {

/// Memory to plan for.
struct PlannedMemory {
  std::string name;            ///< "H100-SXM", "cuda:0 (NVIDIA H200)", "24.00 GiB"
  std::int64_t bytes = 0;      ///< as CUDA tells a process
  std::int32_t num_sms = 132;  ///< of a size, those of an H100 or H200; 0: no CUDA there
  bool from_driver = false;  ///< a preset whose CUDA total nobody has published: 1 to 2 % too much
};

/// The memory that `text` names: a preset, auto or cuda:N, or a size. Reports why it cannot be
/// known, with the exit code in `code`.
std::optional<PlannedMemory> find_memory(const Console& console, const std::string& text,
                                         ExitCode* code);

/// A model from numbers.
class ModelNumbers {
 public:
  /// Declares --layers and the others on `command`.
  void declare(CLI::App& command);
  /// Whether any was given.
  bool any() const noexcept;
  /// The model, or what is missing, reported on the console.
  std::optional<capacity::ModelSpec> model(const Console& console) const;

 private:
  capacity::TransformerShape shape_;
  std::int32_t window_ = 0;
  std::int64_t parameters_ = 0;
};

/// The model that `text` names: a preset or a file. Reports why there is none, as above.
std::optional<capacity::ModelSpec> find_model(const Console& console, const std::string& text,
                                              ExitCode* code);

/// Lengths of a trace's requests.
struct TraceLengths {
  std::int64_t requests = 0;         ///< read
  std::vector<std::int64_t> tokens;  ///< prompt and output of each, ascending
  /// The smallest length with at least `percent` of the lengths at or below it (nearest rank).
  std::int64_t at_percentile(double percent) const;
};

/// Reads a trace. Reports why it cannot, as above.
std::optional<TraceLengths> read_lengths(const Console& console, const std::string& path,
                                         ExitCode* code);

}  // namespace kvarena::tools
