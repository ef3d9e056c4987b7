#pragma once

/// @file
/// `run_suite`: runs scenarios on a device, one after another. It goes on after a failed scenario.

#include "scenarios/scenario.hpp"
#include "verify/failure.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::scenarios {

/// The report of a run.
struct SuiteReport {
  std::string model;
  std::string device;                     ///< Device::name
  std::int64_t total_bytes = 0;           ///< of the device
  std::int64_t free_bytes = 0;            ///< before the first scenario
  std::vector<ScenarioReport> scenarios;  ///< that ran, in order
  std::vector<std::string> not_run;       ///< chosen, but the run was interrupted before
  double seconds = 0.0;
};

/// The end of a run, and its report up to there.
struct SuiteOutcome {
  MaybeFailure failure;             ///< absent: all came to their end, and every check held
  std::int64_t required_bytes = 0;  ///< free bytes that the scenarios chosen need
  bool has_report = false;          ///< whether a scenario was to run
  SuiteReport report;
};

/// Runs `options.scenarios`. Ends with does_not_fit, before any scenario runs, when the device has
/// fewer free bytes than they need. Ends with interrupted after `options.stop`; the report then has
/// the finished scenarios.
SuiteOutcome run_suite(const SuiteOptions& options, ProgressSink* sink);

}  // namespace kvarena::scenarios
