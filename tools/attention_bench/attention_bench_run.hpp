#pragma once

/// @file
/// The rows of `kvarena bench attention` as text and as JSON, and their comparison with other
/// kernels: pure functions (attention_bench_rows.cpp). `AttentionBenchRun` measures them one after
/// another with a given meter. It prints each row after its measurement and writes JSON at the end.

#include "tools/console.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "tools/attention_meter/attention_meter.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvarena::tools {

/// 10^9 bytes a second.
double gb_per_s(std::int64_t bytes, double us);
/// "32/8 D=128".
std::string heads_text(const meter::AttentionShape& shape);
/// "64 x 4k", or "64 x 330..65536" for lengths that differ; "4 x 2k + 6k": query tokens and cached
/// tokens, where a sequence has several of the first; "64 x 9k (8k shared)".
std::string batch_text(const meter::AttentionProblem& problem);

/// Returns the figures of a GPU with this name and number of multiprocessors, or nullptr.
const capacity::GpuSpec* data_sheet_of(std::string_view device_name, std::int32_t num_sms);

/// What rows are compared with.
struct Ceilings {
  meter::ReadCeiling read;
  double flops_per_second = 0.0;  ///< of the matrix units; 0: unknown
};

/// Returns whether a table of these rows shows operations: where a sequence has more than 8 query
/// columns, or a row is compared with others.
bool shows_work(std::span<const meter::AttentionProblem> problems);
/// The table's first line.
std::string table_header(bool shows_work);
/// The line of one row.
std::string table_line(const meter::AttentionProblem& problem,
                       const meter::AttentionFigures& figures, const Ceilings& ceilings,
                       bool shows_work);

/// Returns a row as JSON: the problem and its measurement. Numbers of µs and GB/s are not rounded.
nlohmann::ordered_json json_of(const meter::AttentionProblem& problem,
                               const meter::AttentionFigures& figures, const Ceilings& ceilings);

/// Returns how to compare kvarena with FlashInfer, cuDNN and others, and the time of the best of
/// them for each of `problems` that is in docs/benchmarks.md.
std::string peers_text(std::span<const meter::AttentionProblem> problems);
/// The same rows for programs.
nlohmann::ordered_json peers_json(std::span<const meter::AttentionProblem> problems);

/// A run over rows. Borrows all it names.
struct AttentionBenchRun {
  const Device& device;  ///< that the meter measures
  const meter::MeterOptions& options;
  std::span<const meter::AttentionProblem> problems;
  const std::string& json;                        ///< target of `--json`
  const capacity::GpuSpec* data_sheet = nullptr;  ///< of the device, if it is known

  /// Measures the rows and prints a line for each, until options.stop. Returns check_failed when a
  /// result is wrong. An early end is reported and returns interrupted, does_not_fit, usage (the
  /// device cannot compute the row) or environment.
  ExitCode run(const Console& console, meter::AttentionMeter& meter) const;
  /// Reports that `what` failed.
  ExitCode report(const Console& console, const std::string& what, const Status& status) const;
};

}  // namespace kvarena::tools
