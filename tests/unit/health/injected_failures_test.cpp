// A thousand failures, by seed: whatever goes wrong and whenever, no answer is healthy for more
// than two periods afterwards; and once it has been put right, the answer is healthy again.

#include "support/log_capture.hpp"
#include "support/manager_access.hpp"
#include "support/status_matchers.hpp"
#include "unit/health/monitored_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
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
  virtual ~Failure() = default;
  /// Goes wrong; returns from when on it is a failure.
  virtual std::int64_t begin(Process& process) = 0;
  virtual void end(Process& process) = 0;
  virtual HealthReasonCode code() const = 0;
};

struct Violation final : Failure {
  std::int64_t begin(Process& process) override {
    constexpr MemoryPlace kPlaces[] = {MemoryPlace::managed,       MemoryPlace::pinned_host,
                                       MemoryPlace::other_device,  MemoryPlace::mixed,
                                       MemoryPlace::pageable_host, MemoryPlace::integrated};
    process.parts().device.claim(process.weights(), kPlaces[process.below(6)]);
    return process.now_ns();
  }
  void end(Process& process) override {
    process.parts().device.claim(process.weights(), MemoryPlace::vram);
    process.parts().monitor->acknowledge();
  }
  HealthReasonCode code() const override { return HealthReasonCode::residency_violated; }
};

struct FaultyDriver final : Failure {
  std::int64_t begin(Process& process) override {
    process.parts().device.set_unreachable(
        {StatusCode::device_error, Resource::device, Option::none, 46, 0, 0, 0});
    return process.now_ns();
  }
  void end(Process& process) override { process.parts().device.set_unreachable({}); }
  HealthReasonCode code() const override { return HealthReasonCode::device_unreachable; }
};

struct LostDevice final : Failure {
  std::int64_t begin(Process& process) override {
    process.parts().device.set_lost(700);
    return process.now_ns();
  }
  void end(Process& process) override { process.parts().device.set_lost(0); }
  HealthReasonCode code() const override { return HealthReasonCode::device_lost; }
};

struct StoppedThread final : Failure {
  std::int64_t begin(Process& process) override {
    process.set_monitor_works(false);
    return process.now_ns();
  }
  void end(Process& process) override { process.set_monitor_works(true); }
  HealthReasonCode code() const override { return HealthReasonCode::monitor_stopped; }
};

struct StuckCheck final : Failure {
  std::int64_t begin(Process& process) override {
    process.hang_checker();
    return process.now_ns();
  }
  void end(Process& process) override { process.recover_checker(); }
  HealthReasonCode code() const override { return HealthReasonCode::check_stuck; }
};

struct StuckEngine final : Failure {
  std::int64_t begin(Process& process) override {
    process.parts().pool.publisher.begin_step();
    process.set_engine_works(false);
    return process.now_ns() + kPeriod / 2;
  }
  void end(Process& process) override { process.set_engine_works(true); }
  HealthReasonCode code() const override { return HealthReasonCode::engine_stuck; }
};

struct LateTicket final : Failure {
  std::int64_t begin(Process& process) override {
    ticket = process.parts().pool.manager.open_ticket().value();
    process.parts().pool.publish();
    return process.now_ns() + kPeriod / 4;
  }
  void end(Process& process) override { EXPECT_OK(process.parts().pool.manager.retire(ticket)); }
  HealthReasonCode code() const override { return HealthReasonCode::ticket_late; }
  Ticket ticket;
};

struct LateHolder final : Failure {
  std::int64_t begin(Process& process) override {
    const std::int64_t deadline_ns = process.now_ns() + process.below(kPeriod);
    holder = process.parts().pool.manager.register_holder({.deadline_ns = deadline_ns}).value();
    // Without looks between checks it takes one to ask for the details that show the holder.
    return std::max(deadline_ns, process.now_ns() + kPeriod);
  }
  void end(Process& process) override {
    EXPECT_OK(process.parts().pool.manager.unregister_holder(holder));
  }
  HealthReasonCode code() const override { return HealthReasonCode::holder_late; }
  HolderId holder;
};

struct BadAccounts final : Failure {
  std::int64_t begin(Process& process) override {
    // The publisher's audit, which keeps what it finds, is a failure that no one can put right.
    unaudited = std::make_unique<PublishedPool>(12, 0);
    watch = process.parts().monitor->watch(unaudited->publisher, "unaudited").value();
    --parts_of(unaudited->manager).pool.mutable_counts().free;
    unaudited->publish();
    return process.now_ns();
  }
  void end(Process& process) override {
    EXPECT_OK(process.parts().monitor->unwatch(watch));
    process.parts().monitor->acknowledge();
  }
  HealthReasonCode code() const override { return HealthReasonCode::accounts_violated; }
  std::unique_ptr<PublishedPool> unaudited;
  WatchId watch;
};

struct Drift final : Failure {
  std::int64_t begin(Process& process) override {
    process.parts().device.set_unrecorded(1'000'001 +
                                          static_cast<std::uint64_t>(process.below(1000)));
    return process.now_ns();
  }
  void end(Process& process) override { process.parts().device.set_unrecorded(0); }
  HealthReasonCode code() const override { return HealthReasonCode::memory_drift; }
};

std::unique_ptr<Failure> failure_of(std::int64_t kind) {
  switch (kind) {
    case 0: return std::make_unique<Violation>();
    case 1: return std::make_unique<FaultyDriver>();
    case 2: return std::make_unique<LostDevice>();
    case 3: return std::make_unique<StoppedThread>();
    case 4: return std::make_unique<StuckCheck>();
    case 5: return std::make_unique<StuckEngine>();
    case 6: return std::make_unique<LateTicket>();
    case 7: return std::make_unique<LateHolder>();
    case 8: return std::make_unique<Drift>();
    default: return std::make_unique<BadAccounts>();
  }
}

bool names(const HealthReport& report, HealthReasonCode code) {
  return std::ranges::any_of(report.reasons, [&](const auto& r) { return r.code == code; });
}

/// Lives through one failure. Stops at the first answer that is wrong.
void inject(std::uint64_t seed) {
  Process process(seed);
  const std::unique_ptr<Failure> failure = failure_of(process.below(10));
  SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::string(name_of(failure->code())));
  for (std::int64_t i = process.below(30); i > 0; --i) {
    const HealthReport report = process.live();
    ASSERT_TRUE(report.healthy) << "before anything went wrong: " << text_of(report);
  }
  const std::int64_t began_ns = failure->begin(process);
  HealthReport report;
  while (process.now_ns() - began_ns <= 2 * kPeriod) report = process.live();
  ASSERT_FALSE(report.healthy) << process.now_ns() - began_ns << " ns late";
  ASSERT_TRUE(names(report, failure->code())) << text_of(report);
  for (std::int64_t i = process.below(10); i > 0; --i) {
    report = process.live();
    ASSERT_FALSE(report.healthy) << "it still is a failure";
  }
  failure->end(process);
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
