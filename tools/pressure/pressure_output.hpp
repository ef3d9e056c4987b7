#pragma once

/// @file
/// A pressure run as a table for people, as Markdown and as JSON. Pure functions, but for the files
/// that write_reports writes.

#include "tools/console.hpp"
#include "tools/result_file.hpp"

#include "scenarios/suite.hpp"

#include <nlohmann/json_fwd.hpp>

#include <ostream>
#include <string>
#include <string_view>

namespace kvarena::tools {

/// The origin of a report, besides device and model.
struct PressureOrigin {
  std::string started_utc;     ///< "2026-11-21T23:40:11Z"
  std::string driver_version;  ///< the GPU's, by NVML; empty without one
};
/// The origin of a run that starts now on `device`.
PressureOrigin origin_now(const Device& device);

/// "passed", "FAILED" or "skipped".
std::string_view verdict_of(const scenarios::ScenarioReport& scenario);
/// One line a scenario, with the first check that did not hold.
std::string summary_of(const Console& console, const std::ostream& stream,
                       const scenarios::SuiteReport& report);
/// `report.json`: `scenarios` has one object a scenario with `name`, `passed` (null when skipped),
/// `skipped` and `ended` (why it was, or ended early; else null), `figures` and `checks`.
nlohmann::ordered_json json_of(const PressureOrigin& origin, const scenarios::SuiteOptions& options,
                               const scenarios::SuiteOutcome& outcome);
/// `report.md`.
std::string markdown_of(const PressureOrigin& origin, const scenarios::SuiteOptions& options,
                        const scenarios::SuiteOutcome& outcome);
/// Returns whether write_reports could write into `folder`, and no report is the file of `--json`.
/// `made` makes the folder when it is missing. Reports a failure on the console.
ExitCode probe_reports(const Console& console, const std::string& folder, const std::string& json,
                       ResultFolder& made);
/// Writes report.md and report.json into `folder`, and makes the folder when it is missing. Each
/// file is written completely or stays as before. Reports a failure on the console.
ExitCode write_reports(const Console& console, const std::string& folder,
                       const PressureOrigin& origin, const scenarios::SuiteOptions& options,
                       const scenarios::SuiteOutcome& outcome);

}  // namespace kvarena::tools
