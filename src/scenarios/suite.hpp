#pragma once

/// @file
/// `run_suite`: runs scenarios on a device, each on its own, going on after one that failed.

#include "scenarios/scenario.hpp"
#include "verify/failure.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::scenarios {

/// What a run found out.
struct SuiteReport {
  std::string model;
  std::string device;                     ///< Device::name
  std::int64_t total_bytes = 0;           ///< of the device
  std::int64_t free_bytes = 0;            ///< before the first scenario
  std::vector<ScenarioReport> scenarios;  ///< that ran, in order
  std::vector<std::string> not_run;       ///< chosen, but the run was interrupted before
  double seconds = 0.0;
};

/// How a run ended, and the report as far as it goes.
struct SuiteOutcome {
  MaybeFailure failure;             ///< absent: all came to their end, and every check held
  std::int64_t required_bytes = 0;  ///< free bytes that the scenarios chosen need
  bool has_report = false;          ///< whether a scenario was to run
  SuiteReport report;
};

/// Runs `options.scenarios`. does_not_fit when the device has not the free bytes that they need,
/// before anything runs; interrupted after `options.stop`, with what was finished.
SuiteOutcome run_suite(const SuiteOptions& options, ProgressSink* sink);

}  // namespace kvarena::scenarios
