// What a check finds on devices, and how it is told. Checks are made by hand, on a clock that
// stands still.

#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"
#include "support/text_matchers.hpp"
#include "unit/health/monitored_pool.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvarena::test {
namespace {

using enum HealthReasonCode;
using Codes = std::vector<HealthReasonCode>;

std::int64_t count(const LogCapture& log, LogLevel level, std::string_view text) {
  std::int64_t lines = 0;
  for (const auto& line : log.lines()) {
    lines += line.level == level && line.text.find(text) != std::string::npos ? 1 : 0;
  }
  return lines;
}

TEST(HealthMonitorTest, RefusesPeriodsAndLimitsOutOfRange) {
  const auto with = [](auto change) {
    HealthOptions options{.run_thread = false};
    change(options);
    return HealthMonitor::create(options);
  };
  using O = HealthOptions;
  EXPECT_REFUSES(with([](O& o) { o.period_ns = 0; }), invalid_argument, period_ns);
  EXPECT_REFUSES(with([](O& o) { o.pressure_period_ns = -1; }), invalid_argument,
                 pressure_period_ns);
  EXPECT_REFUSES(with([](O& o) { o.pressure_period_ns = o.period_ns + 1; }), invalid_argument,
                 pressure_period_ns);
  EXPECT_REFUSES(with([](O& o) { o.check_limit_ns = 0; }), invalid_argument, check_limit_ns);
  EXPECT_REFUSES(with([](O& o) { o.check_limit_ns = o.period_ns + 1; }), invalid_argument,
                 check_limit_ns);
  EXPECT_REFUSES(with([](O& o) { o.ticket_limit_ns = 0; }), invalid_argument, ticket_limit_ns);
  EXPECT_REFUSES(with([](O& o) { o.step_limit_ns = 0; }), invalid_argument, step_limit_ns);
  EXPECT_REFUSES(with([](O& o) { o.holder_grace_ns = -1; }), invalid_argument, holder_grace_ns);
  EXPECT_REFUSES(with([](O& o) { o.pressure.hysteresis = 2.0; }), invalid_argument, hysteresis);
  EXPECT_OK(with([](O&) {}));
}

TEST(HealthMonitorTest, WithNothingToWatchItIsHealthyOnceCheckedAndNeverResident) {
  MonitoredPool m;
  EXPECT_EQ(codes(m.monitor->report()), Codes{not_checked});
  const HealthReport report = m.check_after(0);
  EXPECT_TRUE(report.healthy) << text_of(report);
  EXPECT_FALSE(report.resident);
  EXPECT_EQ(report.now_ns, m.clock.now_ns());
}

TEST(HealthMonitorTest, ADeviceIsNotCheckedUntilACheckHasSeenIt) {
  MonitoredPool m;
  m.allocate(1000);
  m.allocate(500);
  EXPECT_TRUE(m.check_after(0).healthy);
  ASSERT_OK(m.monitor->watch(m.device));
  EXPECT_FAILS(m.monitor->watch(m.device), failed_precondition, device);
  HealthReport report = m.monitor->report();
  EXPECT_EQ(codes(report), Codes{not_checked});
  EXPECT_FALSE(report.resident);
  report = m.check_after(0);
  EXPECT_TRUE(report.healthy) << text_of(report);
  EXPECT_TRUE(report.resident);
  ASSERT_EQ(report.devices.size(), 1U);
  const DeviceHealth& device = report.devices[0];
  EXPECT_EQ(device.name, "lying host");
  EXPECT_EQ(device.policy, ResidencyPolicy::vram_only);
  EXPECT_EQ(device.allocations_checked, 2U);
  EXPECT_EQ(device.usage.total.bytes, 1500U);
  EXPECT_EQ(device.memory.total_bytes, 1U << 24);
  EXPECT_EQ(device.memory.free_bytes, (1U << 24) - 1500U);
  ASSERT_TRUE(device.drift.has_value());
  EXPECT_EQ(device.drift->growth_bytes, 0);
  EXPECT_TRUE(m.called.empty()) << "waiting for a check is nothing to stop for";
}

TEST(HealthMonitorTest, AHostDeviceIsHealthyAndNotResident) {
  MonitoredPool m;
  const auto memory = m.host->allocate({.bytes = 64});
  ASSERT_OK(memory);
  ASSERT_OK(m.monitor->watch(*m.host));
  const HealthReport report = m.check_after(0);
  EXPECT_TRUE(report.healthy) << text_of(report);
  EXPECT_FALSE(report.resident);
  ASSERT_EQ(report.devices.size(), 1U);
  EXPECT_EQ(report.devices[0].policy, ResidencyPolicy::allow_host);
  EXPECT_EQ(report.devices[0].allocations_checked, 1U);
}

TEST(HealthMonitorTest, AViolationIsLoggedCalledBackAndStaysUntilAcknowledged) {
  MonitoredPool m;
  void* const weights = m.allocate(4096, "layer 3");
  ASSERT_OK(m.monitor->watch(m.device));
  ASSERT_TRUE(m.check_after(0).resident);
  const LogCapture log(LogLevel::info);
  m.device.claim(weights, MemoryPlace::managed);
  HealthReport report = m.check_after(60);
  EXPECT_EQ(codes(report), Codes{residency_violated}) << text_of(report);
  EXPECT_FALSE(report.resident);
  EXPECT_EQ(report.reasons[0].since_ns, m.clock.now_ns());
  ASSERT_EQ(m.called.size(), 1U);
  EXPECT_EQ(m.called[0].text, report.reasons[0].text);
  for (const std::string_view part :
       {"VRAM residency violated", "ModelWeights", "layer 3", "managed", "a planted lie"}) {
    EXPECT_TRUE(log.contains(LogLevel::critical, part)) << part << " in " << text_of(report);
  }
  report = m.check_after(60);
  EXPECT_EQ(codes(report), Codes{residency_violated});
  EXPECT_EQ(count(log, LogLevel::critical, "VRAM residency violated"), 1) << "told once";
  m.device.claim(weights, MemoryPlace::vram);
  report = m.check_after(60);
  EXPECT_TRUE(report.resident);
  EXPECT_EQ(codes(report), Codes{residency_violated}) << "nobody has acknowledged it";
  m.monitor->acknowledge();
  EXPECT_TRUE(m.monitor->report().healthy);
  EXPECT_TRUE(m.check_after(60).healthy);
  EXPECT_EQ(m.called.size(), 1U);
}

TEST(HealthMonitorTest, AViolationThatHoldsComesBackAfterAcknowledge) {
  MonitoredPool m;
  void* const weights = m.allocate();
  ASSERT_OK(m.monitor->watch(m.device));
  m.device.claim(weights, MemoryPlace::pinned_host);
  EXPECT_FALSE(m.check_after(0).healthy);
  m.monitor->acknowledge();
  EXPECT_TRUE(m.monitor->report().healthy);
  EXPECT_EQ(codes(m.check_after(60)), Codes{residency_violated});
  EXPECT_EQ(m.called.size(), 2U);
}

TEST(HealthMonitorTest, EveryViolationIsTold) {
  MonitoredPool m;
  std::vector<void*> buffers;
  for (int i = 0; i < 20; ++i) buffers.push_back(m.allocate(64, "buffer " + std::to_string(i)));
  ASSERT_OK(m.monitor->watch(m.device));
  const LogCapture log(LogLevel::critical);
  for (int i = 0; i < 20; i += 2)
    m.device.claim(buffers[static_cast<std::size_t>(i)], MemoryPlace::managed);
  const HealthReport report = m.check_after(0);
  EXPECT_EQ(report.reasons.size(), 10U);
  EXPECT_EQ(report.devices[0].allocations_checked, 20U);
  EXPECT_EQ(m.called.size(), 10U);
  EXPECT_EQ(count(log, LogLevel::critical, "VRAM residency violated"), 10);
}

TEST(HealthMonitorTest, AnUnreachableDeviceIsAReasonUntilItAnswers) {
  MonitoredPool m;
  m.allocate();
  ASSERT_OK(m.monitor->watch(m.device));
  ASSERT_TRUE(m.check_after(0).healthy);
  m.device.set_unreachable({StatusCode::device_error, Resource::device, Option::none, 46, 0, 0, 0});
  HealthReport report = m.check_after(60);
  EXPECT_EQ(codes(report), Codes{device_unreachable});
  EXPECT_FALSE(report.resident);
  EXPECT_FALSE(report.devices[0].drift.has_value());
  EXPECT_GT(report.devices[0].memory.total_bytes, 0U) << "the last that is known";
  m.device.set_unreachable({});
  report = m.check_after(60);
  EXPECT_TRUE(report.healthy) << text_of(report);
  EXPECT_TRUE(report.resident);
}

TEST(HealthMonitorTest, ALostDeviceIsCriticalAndNotResident) {
  MonitoredPool m;
  m.allocate();
  ASSERT_OK(m.monitor->watch(m.device));
  ASSERT_TRUE(m.check_after(0).healthy);
  const LogCapture log(LogLevel::critical);
  m.device.set_lost(700);
  m.device.set_unreachable(
      {StatusCode::failed_precondition, Resource::device, Option::none, 700, 0, 0, 0});
  const HealthReport report = m.check_after(60);
  EXPECT_EQ(codes(report), Codes{device_lost}) << text_of(report);
  EXPECT_FALSE(report.resident);
  EXPECT_HAS(report.reasons[0].text, "700");
  EXPECT_TRUE(log.contains(LogLevel::critical, "device_lost"));
}

TEST(HealthMonitorTest, DriftIsWarnedOfOnceAStepAndNeverUnhealthy) {
  MonitoredPool m({.drift_warning_bytes = 1000, .run_thread = false});
  ASSERT_OK(m.monitor->watch(m.device));
  const LogCapture log(LogLevel::info);
  const auto lines_after = [&](std::uint64_t unrecorded) {
    m.device.set_unrecorded(unrecorded);
    const HealthReport report = m.check_after(60);
    EXPECT_TRUE(report.healthy) << text_of(report);
    EXPECT_EQ(report.devices[0].drift->growth_bytes, static_cast<std::int64_t>(unrecorded));
    return count(log, LogLevel::warning, "memory drift");
  };
  EXPECT_EQ(lines_after(1000), 0);
  EXPECT_EQ(lines_after(1001), 1);
  EXPECT_EQ(lines_after(1500), 1);
  EXPECT_EQ(lines_after(2001), 1);
  EXPECT_EQ(lines_after(2002), 2) << "as much again";
  EXPECT_EQ(lines_after(10), 2);
  EXPECT_EQ(lines_after(1001), 3);
  EXPECT_TRUE(log.contains(LogLevel::warning, "growth_bytes=1001"));
  EXPECT_TRUE(log.contains(LogLevel::warning, "other_bytes=unknown"));
}

TEST(HealthMonitorTest, DriftLimitsThatNothingPassesAndZeroMeanNever) {
  for (const std::uint64_t never :
       {std::uint64_t{0}, std::uint64_t{1} << 63, std::numeric_limits<std::uint64_t>::max()}) {
    MonitoredPool m(
        {.drift_warning_bytes = never, .drift_limit_bytes = never, .run_thread = false});
    ASSERT_OK(m.monitor->watch(m.device));
    const LogCapture log(LogLevel::info);
    m.device.set_unrecorded(1'000'000);
    EXPECT_TRUE(m.check_after(60).healthy) << never << ": " << text_of(m.monitor->report());
    m.device.set_unrecorded(2'000'000);
    EXPECT_TRUE(m.check_after(60).healthy) << never;
    EXPECT_EQ(count(log, LogLevel::warning, "memory drift"), 0) << never;
  }
}

TEST(HealthMonitorTest, ReportJudgesByTheClockWhenNobodyChecks) {
  MonitoredPool m;
  ASSERT_TRUE(m.check_after(0).healthy);
  m.clock.advance(90 * kSecond);
  EXPECT_TRUE(m.monitor->report().healthy);
  m.clock.advance(1);
  EXPECT_EQ(codes(m.monitor->report()), Codes{monitor_stopped});
  EXPECT_TRUE(m.check_after(0).healthy);
}

TEST(HealthMonitorTest, ACallbackMayThrowAndMayUseTheMonitor) {
  MonitoredPool m;
  HealthMonitor* monitor = nullptr;
  int calls = 0;
  HealthOptions options{.clock = &m.clock, .run_thread = false};
  options.on_unhealthy = [&](const HealthReason&) {
    ++calls;
    EXPECT_FALSE(monitor->report().healthy);
    monitor->acknowledge();
    EXPECT_OK(monitor->unwatch(m.device));
    if (calls == 1) throw std::runtime_error("the engine's own trouble");
    throw 7;
  };
  auto made = HealthMonitor::create(options);
  ASSERT_OK(made);
  monitor = &*made;
  const LogCapture log(LogLevel::error);
  m.device.claim(m.allocate(), MemoryPlace::managed);
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(monitor->watch(m.device));
    EXPECT_TRUE(monitor->check_now().healthy) << "acknowledged and unwatched by the callback";
  }
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(log.contains(LogLevel::error, "the engine's own trouble"));
  EXPECT_TRUE(log.contains(LogLevel::error, "no exception"));
}

TEST(HealthMonitorTest, WhatIsNoLongerWatchedIsForgottenButItsViolations) {
  MonitoredPool m;
  void* const weights = m.allocate();
  ASSERT_OK(m.monitor->watch(m.device));
  m.device.set_unreachable({StatusCode::device_error, Resource::device, Option::none, 46, 0, 0, 0});
  EXPECT_EQ(codes(m.check_after(0)), Codes{device_unreachable});
  ASSERT_OK(m.monitor->unwatch(m.device));
  EXPECT_FAILS(m.monitor->unwatch(m.device), not_found, device);
  EXPECT_TRUE(m.monitor->report().healthy);
  EXPECT_TRUE(m.monitor->report().devices.empty());
  m.device.set_unreachable({});
  m.device.claim(weights, MemoryPlace::managed);
  ASSERT_OK(m.monitor->watch(m.device));
  EXPECT_EQ(codes(m.check_after(0)), Codes{residency_violated});
  ASSERT_OK(m.monitor->unwatch(m.device));
  EXPECT_EQ(codes(m.check_after(1)), Codes{residency_violated});
  m.monitor->acknowledge();
  EXPECT_TRUE(m.check_after(1).healthy);
}

TEST(HealthMonitorTest, DetailsListTheLargestAllocations) {
  MonitoredPool m;
  for (std::uint64_t i = 1; i <= 40; ++i) m.allocate(i * 256);
  ASSERT_OK(m.monitor->watch(m.device));
  const HealthDetails details = m.monitor->details();
  ASSERT_EQ(details.devices.size(), 1U);
  EXPECT_EQ(details.devices[0].name, "lying host");
  ASSERT_EQ(details.devices[0].largest.size(), HealthDetails::kMaxAllocations);
  for (std::uint64_t i = 0; i < HealthDetails::kMaxAllocations; ++i) {
    EXPECT_EQ(details.devices[0].largest[i].bytes, (40 - i) * 256);
  }
}

TEST(HealthMonitorTest, MovesWithItsThread) {
  ManualClock clock;
  auto one = HealthMonitor::create({.clock = &clock});
  ASSERT_OK(one);
  HealthMonitor two = std::move(*one);
  *one = HealthMonitor::create({.clock = &clock, .run_thread = false}).value();
  two = std::move(*one);
  EXPECT_TRUE(two.check_now().healthy);
}

}  // namespace
}  // namespace kvarena::test
