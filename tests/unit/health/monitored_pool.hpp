#pragma once

/// @file
/// A monitor on a clock that stands still, a device that passes for a GPU, a pool, and what the
/// tests do with them and compare. Without a thread the tests check by hand.

#include "support/lying_device.hpp"
#include "support/manual_clock.hpp"
#include "unit/step/step_publisher_fixture.hpp"

#include "kvarena/device/host_device.hpp"
#include "kvarena/health/health_monitor.hpp"
#include "kvarena/health/health_report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvarena::test {

inline constexpr std::int64_t kSecond = 1'000'000'000;

/// The codes of a report's reasons.
inline std::vector<HealthReasonCode> codes(const HealthReport& report) {
  std::vector<HealthReasonCode> all;
  for (const HealthReason& reason : report.reasons) all.push_back(reason.code);
  return all;
}

/// All reasons of a report, for messages.
inline std::string text_of(const HealthReport& report) {
  std::string text = report.healthy ? "healthy" : "unhealthy";
  for (const HealthReason& reason : report.reasons) {
    text += "; " + std::string(name_of(reason.code)) + ": " + reason.text;
  }
  return text;
}

/// Everything that a monitor watches. The monitor goes first.
struct MonitoredPool {
  explicit MonitoredPool(HealthOptions options = {.run_thread = false}) {
    clock.advance(1'000'000 * kSecond);
    options.clock = &clock;
    options.on_unhealthy = [this](const HealthReason& reason) { called.push_back(reason); };
    options.on_pressure = [this](WatchId, const PressureEvent& event) { events.push_back(event); };
    monitor = std::make_unique<HealthMonitor>(HealthMonitor::create(options).value());
  }

  /// A check `seconds` later.
  HealthReport check_after(std::int64_t seconds) {
    clock.advance(seconds * kSecond);
    return monitor->check_now();
  }
  /// One more allocation of the device.
  void* allocate(std::uint64_t bytes = 4096, std::string_view description = "weights") {
    return device
        .allocate(
            {.bytes = bytes, .purpose = MemoryPurpose::model_weights, .description = description})
        .value();
  }

  ManualClock clock;
  std::unique_ptr<HostDevice> host = HostDevice::create({.capacity_bytes = 1 << 24}).value();
  LyingDevice device{*host};
  PublishedPool pool{64};
  std::vector<HealthReason> called;   // by on_unhealthy
  std::vector<PressureEvent> events;  // by on_pressure
  std::unique_ptr<HealthMonitor> monitor;
};

}  // namespace kvarena::test
