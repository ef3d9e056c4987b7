#pragma once

/// @file
/// `kvarena bench attention`: measures how long decode attention takes on a device, and how long a
/// plain read of the same bytes takes.

#include "tools/attention_bench/attention_bench_options.hpp"
#include "tools/console.hpp"
#include "tools/device_option.hpp"
#include "tools/exit_codes.hpp"

#include "tools/attention_meter/attention_meter.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::tools {

/// The command's options and its work.
class BenchCommand {
 public:
  /// Declares `bench` with its benchmarks below `parent` and returns it.
  CLI::App* declare(CLI::App& parent);
  /// Measures the rows and prints a line for each. Returns check_failed when a result is wrong.
  ExitCode run(const Console& console);

 private:
  ExitCode print_peers(const Console& console) const;
  bool complete(const Console& console, const Device& device);

  AttentionBenchOptions rows_;
  ChosenProblems chosen_;
  DeviceChoice device_;
  meter::MeterOptions options_;
  std::optional<std::int64_t> rotated_bytes_;
  std::int32_t threads_ = 0;
  bool peers_ = false;
  std::string json_;
};

}  // namespace kvarena::tools
