// The monitor's thread. Time is a clock that the tests set, and what the thread does is awaited, so
// nothing here depends on how fast a machine is.

#include "support/log_capture.hpp"
#include "support/status_matchers.hpp"
#include "unit/health/monitored_pool.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace kvarena::test {
namespace {

using enum HealthReasonCode;
using Codes = std::vector<HealthReasonCode>;

template <class Condition>
void await(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

/// A monitor with a thread, and what its callbacks said.
struct Watched {
  explicit Watched(HealthOptions options = {}) {
    clock.advance(1'000'000 * kSecond);
    options.clock = &clock;
    options.on_unhealthy = [this](const HealthReason& reason) {
      const std::scoped_lock lock(mutex);
      called.push_back(reason.code);
    };
    monitor = std::make_unique<HealthMonitor>(HealthMonitor::create(options).value());
    // The check that the thread begins with sees nothing of what comes.
    await([this] { return completed() == 1; });
  }
  std::uint64_t completed() const { return monitor->report().checks.completed; }
  /// Lets time go by and waits for the check that this brings: one that began then, not one that
  /// was under way.
  void pass(std::int64_t ns) {
    clock.advance(ns);
    monitor->wake();
    await([&] {
      const CheckFigures checks = monitor->report().checks;
      return checks.last_ended_ns - checks.last_duration_ns == clock.now_ns();
    });
  }
  /// Watches the device and waits for the check that has seen it.
  void watch_device() {
    const std::uint64_t before = completed();
    ASSERT_OK(monitor->watch(device));
    await([&] { return completed() > before; });
    ASSERT_TRUE(monitor->report().healthy);
  }
  Codes calls() const {
    const std::scoped_lock lock(mutex);
    return called;
  }

  ManualClock clock;
  std::unique_ptr<HostDevice> host = HostDevice::create({.capacity_bytes = 1 << 24}).value();
  LyingDevice device{*host};
  void* weights = device.allocate({.bytes = 4096, .purpose = MemoryPurpose::model_weights}).value();
  mutable std::mutex mutex;
  Codes called;
  std::unique_ptr<HealthMonitor> monitor;  // goes first
};

TEST(HealthThreadsTest, ChecksAtOnceAndThenEachPeriod) {
  Watched w;
  await([&] { return w.completed() == 1; });
  for (std::uint64_t i = 2; i < 20; ++i) {
    w.clock.advance(59 * kSecond);
    w.monitor->wake();
    w.pass(kSecond);
    EXPECT_EQ(w.completed(), i);
  }
}

TEST(HealthThreadsTest, ANewDeviceIsCheckedAtOnce) {
  Watched w;
  w.watch_device();
  const HealthReport report = w.monitor->report();
  EXPECT_TRUE(report.resident);
  EXPECT_EQ(report.devices[0].allocations_checked, 1U);
}

TEST(HealthThreadsTest, ANewPoolOfAWatchedDeviceBringsACheckOfItsMemory) {
  Watched w;
  w.watch_device();
  await([&] { return w.monitor->report().devices.at(0).allocations_checked == 1; });
  const auto more = w.device.allocate({.bytes = 64, .purpose = MemoryPurpose::kv_cache});
  ASSERT_OK(more);
  PublishedPool pool(64);
  const auto id = w.monitor->watch(pool.publisher, "new", &w.device);
  ASSERT_OK(id);
  await([&] {  // devices are checked before pools; time stands
    const HealthReport report = w.monitor->report();
    return report.devices.at(0).allocations_checked == 2 && report.pools.at(0).looked_ns;
  });
  ASSERT_OK(w.monitor->unwatch(*id));
}

TEST(HealthThreadsTest, ANewCacheOfAWatchedDeviceIsCheckedAtOnce) {
  Watched w;
  w.watch_device();
  auto cache = KvCache::create(
      w.device,
      {.layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 16, .dtype = DType::f16},
       .size = {.num_blocks = 32},
       .num_q_heads = 2,
       .num_threads = 1});
  ASSERT_OK(cache);
  const std::uint64_t allocations = w.device.tracker().allocations().size();
  ASSERT_GT(allocations, 1U);
  ASSERT_OK(w.monitor->watch(*cache, "cache"));
  await([&] { return w.monitor->report().devices.at(0).allocations_checked == allocations; });
  w.monitor.reset();  // the cache goes first otherwise
}

TEST(HealthThreadsTest, AViolationIsFoundWithinAPeriod) {
  Watched w;
  w.watch_device();
  const LogCapture log(LogLevel::critical);
  w.device.claim(w.weights, MemoryPlace::managed);
  w.pass(60 * kSecond);
  EXPECT_EQ(codes(w.monitor->report()), Codes{residency_violated});
  EXPECT_TRUE(log.contains(LogLevel::critical, "VRAM residency violated"));
  await([&] { return w.calls() == Codes{residency_violated}; });
}

TEST(HealthThreadsTest, StopsAtOnceHoweverLongThePeriodAndItsClock) {
  for (int i = 0; i < 50; ++i) {
    auto monitor =
        HealthMonitor::create({.period_ns = 365LL * 24 * 3600 * kSecond, .pressure_period_ns = 0});
    ASSERT_OK(monitor);
    if (i % 2 == 0) await([&] { return monitor->report().checks.completed > 0; });
  }
}

TEST(HealthThreadsTest, AStuckCheckIsTheReportsToTell) {
  Watched w;
  w.watch_device();
  w.device.hang();
  w.clock.advance(60 * kSecond);
  w.monitor->wake();
  w.device.await_victim();
  EXPECT_TRUE(w.monitor->report().healthy);
  w.clock.advance(30 * kSecond + 1);
  EXPECT_EQ(codes(w.monitor->report()), (Codes{check_stuck, monitor_stopped}));
  w.device.recover();
  await([&] { return w.monitor->report().healthy; });
}

TEST(HealthThreadsTest, UnwatchWaitsForACheckThatIsAskingTheDevice) {
  Watched w;
  w.watch_device();
  w.device.hang();
  w.clock.advance(60 * kSecond);
  w.monitor->wake();
  w.device.await_victim();
  std::atomic<bool> has_recovered = false;
  std::thread unwatching([&] {
    EXPECT_OK(w.monitor->unwatch(w.device));
    EXPECT_TRUE(has_recovered.load()) << "the check was still in there";
  });
  // Whoever reads reports does not wait with it.
  await([&] { return w.monitor->report().devices.empty(); });
  has_recovered = true;
  w.device.recover();
  unwatching.join();
}

TEST(HealthThreadsTest, CallbacksThatThrowDoNotEndTheThread) {
  ManualClock clock;
  clock.advance(kSecond);
  auto host = HostDevice::create({.capacity_bytes = 1 << 24}).value();
  LyingDevice device(*host);
  const auto memory = device.allocate({.bytes = 64});
  ASSERT_OK(memory);
  std::atomic<int> calls = 0;
  auto monitor = HealthMonitor::create({.clock = &clock, .on_unhealthy = [&](const HealthReason&) {
                                          ++calls;
                                          throw std::runtime_error("no");
                                        }});
  ASSERT_OK(monitor);
  device.claim(*memory, MemoryPlace::managed);
  ASSERT_OK(monitor->watch(device));
  for (int i = 1; i <= 5; ++i) {
    await([&] { return calls == i; });
    monitor->acknowledge();
    clock.advance(60 * kSecond);
    monitor->wake();
  }
}

TEST(HealthThreadsTest, PressureIsWatchedBetweenChecks) {
  std::atomic<int> events = 0;
  Watched w({.on_pressure = [&](WatchId, const PressureEvent&) { ++events; }});
  PublishedPool pool(64);
  const auto id = w.monitor->watch(pool.publisher);
  ASSERT_OK(id);
  w.pass(60 * kSecond);
  const std::uint64_t checks = w.completed();
  pool.add(4 * 64);
  pool.publish();
  w.clock.advance(kSecond);
  w.monitor->wake();
  await([&] { return events == 1; });
  EXPECT_EQ(w.monitor->report().pools.at(0).pressure, PressureLevel::exhausted);
  EXPECT_EQ(w.completed(), checks);
  ASSERT_OK(w.monitor->unwatch(*id));
}

// Nobody waits for the thread here: an answer is judged by the clock alone, so it is right even
// when the thread is far behind.
TEST(HealthThreadsTest, NoAnswerIsHealthyTwoPeriodsLateHoweverSlowTheThread) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    Watched w;
    w.watch_device();
    w.device.claim(w.weights, MemoryPlace::managed);
    const std::int64_t began_ns = w.clock.now_ns();
    for (int i = 0; i < 40; ++i) {
      w.clock.advance(static_cast<std::int64_t>(random() % (20 * kSecond)));
      if (random() % 2 == 0) w.monitor->wake();
      const HealthReport report = w.monitor->report();
      ASSERT_TRUE(!report.healthy || report.now_ns - began_ns <= 120 * kSecond)
          << "seed " << seed << ", " << report.now_ns - began_ns << " ns late";
    }
    w.device.claim(w.weights, MemoryPlace::vram);
    await([&] {
      w.pass(60 * kSecond);
      w.monitor->acknowledge();
      return w.monitor->report().healthy;
    });
  }
}

/// Runs `work` over and over until `stop`.
template <class Work>
std::thread repeat(std::atomic<bool>& stop, Work work) {
  return std::thread([&stop, work = std::move(work)]() mutable {
    while (!stop) work();
  });
}

TEST(HealthThreadsTest, AllocationReportsChecksAndWatchesAtTheSameTime) {
  // The clock does not wait for the thread that publishes, so no step may be late by it.
  Watched w({.step_limit_ns = 1'000 * kSecond});
  w.watch_device();
  PublishedPool pool(64);
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.push_back(repeat(stop, [&w] {
      const auto memory = w.device.allocate({.bytes = 4096, .description = "churn"});
      ASSERT_OK(memory);
      ASSERT_OK(w.device.free(*memory));
    }));
  }
  threads.push_back(repeat(stop, [&] {
    const HealthReport report = w.monitor->report();
    ASSERT_EQ(report.healthy, report.reasons.empty());
    static_cast<void>(w.monitor->details());
  }));
  threads.push_back(repeat(stop, [&] {
    const auto id = w.monitor->watch(pool.publisher, "churn", &w.device);
    ASSERT_OK(id);
    ASSERT_OK(w.monitor->report_engine(*id, 0, 1));
    ASSERT_OK(w.monitor->unwatch(*id));
    ASSERT_OK(w.monitor->unwatch(w.device));
    ASSERT_OK(w.monitor->watch(w.device));
  }));
  threads.push_back(repeat(stop, [&] {
    pool.publisher.begin_step();
    static_cast<void>(pool.publish());
  }));
  for (int i = 0; i < 300; ++i) {
    w.clock.advance(kSecond);
    w.monitor->wake();
    w.monitor->acknowledge();
    static_cast<void>(w.monitor->check_now());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(w.calls(), Codes{}) << "memory that is freed meanwhile is no violation";
  const HealthReport report = w.monitor->check_now();
  EXPECT_TRUE(report.healthy) << text_of(report);
  EXPECT_TRUE(report.resident);
}

}  // namespace
}  // namespace kvarena::test
