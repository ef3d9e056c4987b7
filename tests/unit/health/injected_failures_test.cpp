// A thousand failures, by seed: whatever goes wrong and whenever, no answer is healthy for more
// than two periods afterwards; and once it has been put right, the answer is healthy again.

#include "support/log_capture.hpp"
#include "support/manager_access.hpp"
#include "support/status_matchers.hpp"
#include "unit/health/monitored_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kvarena::test {
namespace {

constexpr std::int64_t kPeriod = 60 * kSecond;

/// A serving process in small: an engine that publishes steps, and a monitor that is asked to check
/// each period as its thread would be, a little late at times.
class Process {
 public:
  explicit Process(std::uint64_t seed)
      : random_(seed),
        m_({.period_ns = kPeriod,
            .pressure_period_ns = 0,
            .check_limit_ns = kPeriod / 2,
            .ticket_limit_ns = kPeriod / 4,
            .step_limit_ns = kPeriod / 2,
            .drift_warning_bytes = 1000,
            .drift_limit_bytes = 1'000'000,
            .run_thread = false}) {
    weights_ = m_.allocate();
    EXPECT_OK(m_.monitor->watch(m_.device));
    EXPECT_OK(m_.monitor->watch(m_.pool.publisher, "main", &m_.device));
    check();
  }
  ~Process() { recover_checker(); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  /// Some of a period goes by.
  HealthReport live() {
    m_.clock.advance(1 + below(kPeriod / 4));
    if (engine_works_) {
      m_.pool.publish();
      m_.pool.publisher.begin_step();
    }
    if (monitor_works_ && m_.clock.now_ns() >= next_check_ns_) check();
    return m_.monitor->report();
  }
  std::int64_t now_ns() const { return m_.clock.now_ns(); }
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(bound));
  }

  MonitoredPool& parts() { return m_; }
  void* weights() const { return weights_; }
  void set_engine_works(bool works) { engine_works_ = works; }
  void set_monitor_works(bool works) { monitor_works_ = works; }
  /// The next check begins now and does not end.
  void hang_checker() {
    m_.device.hang();
    monitor_works_ = false;
    checker_ = std::thread([this] { m_.monitor->check_now(); });
    m_.device.await_victim();
  }
  void recover_checker() {
    m_.device.recover();
    if (checker_.joinable()) checker_.join();
    monitor_works_ = true;
  }

 private:
  void check() {
    next_check_ns_ = m_.clock.now_ns() + kPeriod;
    m_.monitor->check_now();
  }

  std::mt19937_64 random_;
  MonitoredPool m_;
  void* weights_ = nullptr;
  std::int64_t next_check_ns_ = 0;
  bool engine_works_ = true;
  bool monitor_works_ = true;
  std::thread checker_;
};

/// Something that goes wrong, and how it is put right.
struct Failure {
  HealthReasonCode code;
  /// Goes wrong; returns from when on it is a failure.
  std::function<std::int64_t(Process&)> begin;
  std::function<void(Process&)> end;
};

Failure violation() {
  return {HealthReasonCode::residency_violated,
          [](Process& process) {
            constexpr MemoryPlace kPlaces[] = {MemoryPlace::managed,       MemoryPlace::pinned_host,
                                               MemoryPlace::other_device,  MemoryPlace::mixed,
                                               MemoryPlace::pageable_host, MemoryPlace::integrated};
            process.parts().device.claim(process.weights(), kPlaces[process.below(6)]);
            return process.now_ns();
          },
          [](Process& process) {
            process.parts().device.claim(process.weights(), MemoryPlace::vram);
            process.parts().monitor->acknowledge();
          }};
}

Failure stuck_engine() {
  return {HealthReasonCode::engine_stuck,
          [](Process& process) {
            process.parts().pool.publisher.begin_step();
            process.set_engine_works(false);
            return process.now_ns() + kPeriod / 2;
          },
          [](Process& process) { process.set_engine_works(true); }};
}

Failure late_ticket() {
  auto ticket = std::make_shared<Ticket>();
  return {HealthReasonCode::ticket_late,
          [=](Process& process) {
            *ticket = process.parts().pool.manager.open_ticket().value();
            process.parts().pool.publish();
            return process.now_ns() + kPeriod / 4;
          },
          [=](Process& process) { EXPECT_OK(process.parts().pool.manager.retire(*ticket)); }};
}

Failure late_holder() {
  auto holder = std::make_shared<HolderId>();
  return {HealthReasonCode::holder_late,
          [=](Process& process) {
            const std::int64_t deadline_ns = process.now_ns() + process.below(kPeriod);
            auto& manager = process.parts().pool.manager;
            *holder = manager.register_holder({.deadline_ns = deadline_ns}).value();
            // Without looks between checks it takes one to ask for the details that show it.
            return std::max(deadline_ns, process.now_ns() + kPeriod);
          },
          [=](Process& process) {
            EXPECT_OK(process.parts().pool.manager.unregister_holder(*holder));
          }};
}

Failure bad_accounts() {
  // The publisher's audit, which keeps what it finds, is a failure that no one can put right.
  auto unaudited = std::make_shared<PublishedPool>(12, 0);
  auto watch = std::make_shared<WatchId>();
  return {HealthReasonCode::accounts_violated,
          [=](Process& process) {
            *watch = process.parts().monitor->watch(unaudited->publisher, "unaudited").value();
            --parts_of(unaudited->manager).pool.mutable_counts().free;
            unaudited->publish();
            return process.now_ns();
          },
          [=](Process& process) {
            EXPECT_OK(process.parts().monitor->unwatch(*watch));
            process.parts().monitor->acknowledge();
          }};
}

/// One that is there at once, by a call and its opposite.
template <class Begin, class End>
Failure at_once(HealthReasonCode code, Begin begin, End end) {
  return {code,
          [begin](Process& process) {
            begin(process);
            return process.now_ns();
          },
          end};
}

Failure failure_of(std::int64_t kind) {
  using enum HealthReasonCode;
  constexpr Status kNoAnswer{StatusCode::device_error, Resource::device, Option::none, 46, 0, 0, 0};
  const auto device = [](Process & process) -> auto& { return process.parts().device; };
  switch (kind) {
    case 0: return violation();
    case 1:
      return at_once(
          device_unreachable, [=](Process& p) { device(p).set_unreachable(kNoAnswer); },
          [=](Process& p) { device(p).set_unreachable({}); });
    case 2:
      return at_once(
          device_lost, [=](Process& p) { device(p).set_lost(700); },
          [=](Process& p) { device(p).set_lost(0); });
    case 3:
      return at_once(
          monitor_stopped, [](Process& p) { p.set_monitor_works(false); },
          [](Process& p) { p.set_monitor_works(true); });
    case 4:
      return at_once(
          check_stuck, [](Process& p) { p.hang_checker(); },
          [](Process& p) { p.recover_checker(); });
    case 5: return stuck_engine();
    case 6: return late_ticket();
    case 7: return late_holder();
    case 8:
      return at_once(
          memory_drift,
          [=](Process& p) {
            device(p).set_unrecorded(1'000'001 + static_cast<std::uint64_t>(p.below(1000)));
          },
          [=](Process& p) { device(p).set_unrecorded(0); });
    default: return bad_accounts();
  }
}

bool names(const HealthReport& report, HealthReasonCode code) {
  return std::ranges::any_of(report.reasons, [&](const auto& r) { return r.code == code; });
}

/// Lives through one failure. Stops at the first answer that is wrong.
void inject(std::uint64_t seed) {
  Process process(seed);
  const Failure failure = failure_of(process.below(10));
  SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::string(name_of(failure.code)));
  for (std::int64_t i = process.below(30); i > 0; --i) {
    const HealthReport report = process.live();
    ASSERT_TRUE(report.healthy) << "before anything went wrong: " << text_of(report);
  }
  const std::int64_t began_ns = failure.begin(process);
  HealthReport report;
  while (process.now_ns() - began_ns <= 2 * kPeriod) report = process.live();
  ASSERT_FALSE(report.healthy) << process.now_ns() - began_ns << " ns late";
  ASSERT_TRUE(names(report, failure.code)) << text_of(report);
  for (std::int64_t i = process.below(10); i > 0; --i) {
    report = process.live();
    ASSERT_FALSE(report.healthy) << "it still is a failure";
  }
  failure.end(process);
  const std::int64_t ended_ns = process.now_ns();
  while (process.now_ns() - ended_ns <= 3 * kPeriod) report = process.live();
  ASSERT_TRUE(report.healthy) << "after it was put right: " << text_of(report);
}

TEST(InjectedFailuresTest, NoAnswerIsHealthyForMoreThanTwoPeriodsAfterwards) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    inject(seed);
    if (HasFatalFailure()) return;
  }
}

TEST(InjectedFailuresTest, DriftBelowItsLimitIsLoggedWithinTwoPeriodsAndIsNoIllness) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    Process process(seed);
    for (std::int64_t i = process.below(30); i > 0; --i) process.live();
    const LogCapture log(LogLevel::warning);
    process.parts().device.set_unrecorded(1001 + static_cast<std::uint64_t>(process.below(1000)));
    for (const std::int64_t began_ns = process.now_ns();
         process.now_ns() - began_ns <= 2 * kPeriod;) {
      const HealthReport report = process.live();
      ASSERT_TRUE(report.healthy) << text_of(report);
    }
    ASSERT_EQ(log.lines().size(), 1U) << "seed " << seed;
    ASSERT_TRUE(log.contains(LogLevel::warning, "memory drift")) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvarena::test
