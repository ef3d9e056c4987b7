#pragma once

/// @file
/// `kvarena pressure`: runs the memory of a device to its limits and reports the results.

#include "tools/console.hpp"
#include "tools/device_option.hpp"
#include "tools/exit_codes.hpp"

#include "scenarios/suite.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::tools {

/// The command's options and its work.
class PressureCommand {
 public:
  /// Declares the command below `parent` and returns it.
  CLI::App* declare(CLI::App& parent);
  /// Runs the scenarios and reports.
  ExitCode run(const Console& console);

 private:
  /// Says why, and returns the exit code.
  ExitCode report_failure(const Console& console, const scenarios::SuiteOutcome& outcome) const;

  scenarios::SuiteOptions options_;
  DeviceChoice device_;
  std::string model_;
  std::optional<std::int64_t> memory_bytes_;
  std::string out_;
  std::string json_;
};

}  // namespace kvarena::tools
