#pragma once

/// @file
/// The options of `kvarena bench attention`: heads, lengths and types from the command line become
/// problems for a meter.

#include "tools/console.hpp"

#include "tools/attention_meter/attention_problem.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// The rows to measure, or the exit code of the reported error.
struct ChosenProblems {
  ExitCode code = ExitCode::ok;  ///< what was wrong has been reported
  std::vector<meter::AttentionProblem> problems;
};

/// The options of the command.
class AttentionBenchOptions {
 public:
  /// Declares the options that choose rows: known ones, or ones of given shapes.
  void declare(CLI::App& command);
  /// Returns the rows in the given order. Reports contradictions and bad files.
  ChosenProblems choose(const Console& console) const;
  /// Whether rows are compared with themselves, with results that do not depend on the batch.
  bool is_batch_invariant() const { return batch_invariant_; }
  /// Whether K and V are fp8.
  bool is_fp8() const { return dtype_ == "fp8"; }
  /// The file of --lengths; empty: none.
  const std::string& lengths_path() const { return lengths_path_; }

 private:
  void declare_counts(CLI::App& command);
  void declare_row(CLI::App& command);
  void declare_known_rows(CLI::App& command);
  void declare_batch_invariant(CLI::App& command);
  ChosenProblems known_rows(const Console& console) const;
  std::vector<meter::AttentionProblem> uniform_rows(const meter::AttentionShape& shape) const;
  std::vector<meter::AttentionShape> shapes() const;
  std::vector<meter::AttentionProblem> rows_of_presets() const;
  /// The options' shape with the heads of a shape, a preset or a model.
  template <class Heads>
  meter::AttentionShape with_heads_of(const Heads& heads) const;
  bool has_lengths() const;
  bool is_valid(const Console& console, const meter::AttentionProblem& problem) const;

  std::string preset_;
  std::string lengths_path_;
  std::string dtype_ = "bf16";
  bool prefill_ = false;
  bool columns_ = false;
  bool latents_ = false;
  bool kinds_ = false;
  bool shared_prefix_ = false;
  bool batch_invariant_ = false;
  std::vector<std::string> names_;
  std::vector<std::int32_t> cached_;
  std::int32_t shared_tokens_ = 0;
  std::int32_t num_groups_ = 1;
  double soft_cap_ = 0.0;
  std::vector<std::int32_t> batches_ = {64};
  std::vector<std::int32_t> contexts_ = {1024};
  meter::AttentionShape shape_;
  const CLI::Option* batch_option_ = nullptr;
  const CLI::Option* context_option_ = nullptr;
};

}  // namespace kvarena::tools
