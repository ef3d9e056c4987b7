#pragma once

/// @file
/// The rows of `kvarena bench attention`, measured one after another with whatever meter it is
/// given, printed as they come, and written as JSON at the end.

#include "tools/console.hpp"
#include "tools/exit_codes.hpp"

#include "tools/attention_meter/attention_meter.hpp"

#include <span>
#include <string>

namespace kvarena::tools {

/// A run over rows. Borrows all it names.
struct AttentionBenchRun {
  const Device& device;  ///< that the meter measures
  const meter::MeterOptions& options;
  std::span<const meter::AttentionProblem> problems;
  const std::string& json;  ///< target of `--json`

  /// Measures and prints a line a row. Returns check_failed when a result is wrong; what ends the
  /// run early is reported: does_not_fit, usage for what the device cannot compute, environment.
  ExitCode run(const Console& console, meter::AttentionMeter& meter) const;
  /// Reports that `what` failed.
  ExitCode report(const Console& console, const std::string& what, const Status& status) const;
};

}  // namespace kvarena::tools
