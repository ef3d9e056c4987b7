#pragma once

/// @file
/// Measures the rows of `kvarena bench attention` one after another with a given meter. It prints
/// each row after its measurement and writes JSON at the end.

#include "tools/attention_bench/attention_bench_rows.hpp"
#include "tools/console.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "tools/attention_meter/attention_meter.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvarena::tools {

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
