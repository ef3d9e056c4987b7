#pragma once

/// @file
/// `PressureContext`: what every scenario is handed: the options, and where its progress goes.

#include "scenarios/pressure_options.hpp"
#include "scenarios/scenario_report.hpp"

#include <string_view>

namespace kvarena::replay::pressure {

/// Receives what happens.
class PressureSink {
 public:
  virtual ~PressureSink() = default;
  /// A scenario begins.
  virtual void on_begin(std::string_view name, std::string_view title) = 0;
  /// It has come this far, in words.
  virtual void on_progress(std::string_view name, std::string_view what) = 0;
  /// It is over.
  virtual void on_end(const ScenarioReport& report) = 0;
};

/// Borrowed for one scenario.
struct PressureContext {
  const PressureOptions& options;
  std::string_view scenario;     ///< its name
  PressureSink* sink = nullptr;  ///< may be null

  Device& device() const noexcept { return *options.device; }
  const PressureModel& model() const noexcept { return options.model; }
  const PressureSizes& sizes() const noexcept { return options.sizes; }
  bool on_gpu() const noexcept { return options.device->kind() == DeviceKind::cuda; }
  std::int64_t now_ns() const { return options.clock->now_ns(); }
  /// Passes a remark on.
  void progress(std::string_view what) const {
    if (sink != nullptr) sink->on_progress(scenario, what);
  }
};

}  // namespace kvarena::replay::pressure
