#pragma once

/// @file
/// `run_pressure`: runs the pressure scenarios on a device, each on its own, going on after one
/// that failed.

#include "replay/replay_report.hpp"
#include "scenarios/pressure_context.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::replay::pressure {

/// What a run found out.
struct PressureReport {
  std::string model;
  std::string device;                     ///< Device::name
  std::int64_t total_bytes = 0;           ///< of the device
  std::int64_t free_bytes = 0;            ///< before the first scenario
  std::vector<ScenarioReport> scenarios;  ///< that ran, in order
  double seconds = 0.0;

  /// Scenarios that failed.
  std::int64_t num_failed() const noexcept;
};

/// How a run ended, in words, and the report as far as it goes.
struct PressureOutcome {
  ReplayEnd end = ReplayEnd::completed;  ///< completed, check_failed, bad_options, does_not_fit or
                                         ///< environment
  std::string happened;                  ///< empty when completed
  std::string expected;                  ///< may be empty
  std::string advice;                    ///< may be empty
  std::int64_t required_bytes = 0;       ///< free bytes that the scenarios chosen need
  bool has_report = false;               ///< whether a scenario ran
  PressureReport report;
};

/// Runs `options.scenarios`. does_not_fit when the device has no room for the weights and one
/// sequence, before anything runs.
PressureOutcome run_pressure(const PressureOptions& options, PressureSink* sink);

}  // namespace kvarena::replay::pressure
