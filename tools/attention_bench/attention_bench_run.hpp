#pragma once

/// @file
/// Measures the rows of `kvarena bench attention` one after another with a given meter. It prints
/// each row after its measurement and writes JSON at the end. The functions of a row and of the
/// comparison with other kernels are pure.

#include "tools/console.hpp"

#include "tools/attention_meter/attention_meter.hpp"

#include <nlohmann/json_fwd.hpp>

#include <span>
#include <string>

namespace kvarena::tools {

/// A run over rows. Borrows all it names.
struct AttentionBenchRun {
  const Device& device;  ///< that the meter measures
  const meter::MeterOptions& options;
  std::span<const meter::AttentionProblem> problems;
  const std::string& json;  ///< target of `--json`

  /// Measures the rows and prints a line for each, until options.stop. Returns check_failed when a
  /// result is wrong. An early end is reported and returns interrupted, does_not_fit, usage (the
  /// device cannot compute the row) or environment.
  ExitCode run(const Console& console, meter::AttentionMeter& meter) const;
  /// Reports that `what` failed.
  ExitCode report(const Console& console, const std::string& what, const Status& status) const;
};

/// "32/8 D=128".
std::string heads_text(const meter::AttentionShape& shape);
/// "64 x 4k", or "64 x 330..65536" for lengths that differ.
std::string batch_text(std::span<const std::int32_t> lengths);

/// The table's first line.
std::string table_header();
/// The line of one row.
std::string table_line(const meter::AttentionProblem& problem,
                       const meter::AttentionFigures& figures, const meter::ReadCeiling& ceiling);

/// Returns a row as JSON: the problem and its measurement. Numbers of µs and GB/s are not rounded.
nlohmann::ordered_json json_of(const meter::AttentionProblem& problem,
                               const meter::AttentionFigures& figures,
                               const meter::ReadCeiling& ceiling);

/// Returns how to compare kvarena with FlashInfer, cuDNN and others, and the time of the best of
/// them for each of `problems` that is in docs/benchmarks.md.
std::string peers_text(std::span<const meter::AttentionProblem> problems);
/// The same rows for programs.
nlohmann::ordered_json peers_json(std::span<const meter::AttentionProblem> problems);

}  // namespace kvarena::tools
