// What a look finds on pools: accounts, tickets, holders, engines that hang, pressure.

#include "support/log_capture.hpp"
#include "support/manager_access.hpp"
#include "support/status_matchers.hpp"
#include "support/text_matchers.hpp"
#include "unit/health/monitored_pool.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

namespace kvarena::test {
namespace {

using enum HealthReasonCode;
using Codes = std::vector<HealthReasonCode>;

TEST(PoolHealthTest, AnIdleEngineIsHealthyHoweverLong) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher, "main"));
  for (int i = 0; i < 100; ++i) {
    const HealthReport report = m.check_after(60);
    ASSERT_TRUE(report.healthy) << text_of(report);
  }
  const HealthReport report = m.monitor->report();
  ASSERT_EQ(report.pools.size(), 1U);
  EXPECT_EQ(report.pools[0].name, "main");
  EXPECT_EQ(report.pools[0].snapshot.blocks.num_blocks, 64);
  EXPECT_FALSE(report.pools[0].has_pending_work);
}

TEST(PoolHealthTest, AStepThatDoesNotEndIsStuckUntilItDoes) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher));
  ASSERT_TRUE(m.check_after(3600).healthy);
  m.pool.publisher.begin_step();
  EXPECT_TRUE(m.check_after(29).healthy) << "it may have begun just now";
  HealthReport report = m.check_after(30);
  EXPECT_TRUE(report.healthy) << text_of(report);
  EXPECT_TRUE(report.pools[0].has_pending_work);
  report = m.check_after(1);
  EXPECT_EQ(codes(report), Codes{engine_stuck}) << text_of(report);
  ASSERT_EQ(m.called.size(), 1U);
  m.pool.publish();
  report = m.check_after(1);
  EXPECT_TRUE(report.healthy) << text_of(report);
}

TEST(PoolHealthTest, AnEngineThatPublishesIsNotStuckHoweverBusy) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher));
  for (int i = 0; i < 100; ++i) {
    m.pool.publish();
    m.pool.publisher.begin_step();
    const HealthReport report = m.check_after(25);
    ASSERT_TRUE(report.healthy) << text_of(report);
  }
}

TEST(PoolHealthTest, WaitingRequestsArePendingWork) {
  MonitoredPool m;
  const auto id = m.monitor->watch(m.pool.publisher);
  ASSERT_OK(id);
  ASSERT_OK(m.monitor->report_engine(*id, 3, 2));
  ASSERT_OK(m.monitor->report_engine(*id, 5, 2));
  m.check_after(1);
  HealthReport report = m.check_after(31);
  EXPECT_EQ(codes(report), Codes{engine_stuck}) << text_of(report);
  EXPECT_EQ(report.pools[0].waiting_requests, 5);
  EXPECT_EQ(report.pools[0].preemptions, 4U);
  EXPECT_TRUE(report.pools[0].has_pending_work);
  ASSERT_OK(m.monitor->report_engine(*id, 0, 0));
  EXPECT_TRUE(m.check_after(1).healthy);
  EXPECT_FAILS(m.monitor->report_engine(WatchId(99), 0, 0), not_found, name);
  EXPECT_FAILS(m.monitor->report_engine(*id, -1, 0), invalid_argument, num_sequences);
  EXPECT_FAILS(m.monitor->report_engine(*id, 0, -1), invalid_argument, num_sequences);
}

TEST(PoolHealthTest, ATicketIsLateWhenItHasBeenSeenForLongerThanTheLimit) {
  MonitoredPool m(
      {.ticket_limit_ns = 10 * kSecond, .step_limit_ns = 100 * kSecond, .run_thread = false});
  ASSERT_OK(m.monitor->watch(m.pool.publisher));
  const Ticket first = m.pool.manager.open_ticket().value();
  const Ticket second = m.pool.manager.open_ticket().value();
  m.pool.publish();
  ASSERT_TRUE(m.check_after(1).healthy);
  ASSERT_TRUE(m.check_after(10).healthy);
  HealthReport report = m.check_after(1);
  EXPECT_EQ(codes(report), Codes{ticket_late}) << text_of(report);
  ASSERT_OK(m.pool.manager.retire(first));
  m.pool.publish();
  report = m.check_after(1);
  EXPECT_TRUE(report.healthy) << "another is the oldest now; " << text_of(report);
  report = m.check_after(11);
  EXPECT_EQ(codes(report), Codes{ticket_late}) << text_of(report);
  ASSERT_OK(m.pool.manager.retire(second));
  m.pool.publish();
  EXPECT_TRUE(m.check_after(1).healthy);
  EXPECT_EQ(m.called.size(), 2U);
}

TEST(PoolHealthTest, ATicketsAgeCountsFromItsOwnPublication) {
  MonitoredPool m(
      {.ticket_limit_ns = 7 * kSecond, .step_limit_ns = 100 * kSecond, .run_thread = false});
  ASSERT_OK(m.monitor->watch(m.pool.publisher));
  // One more every 4 s, the oldest of four goes: at each look the oldest is 8 s old.
  std::deque<Ticket> open;
  HealthReport report;
  for (int i = 0; i < 6; ++i) {
    open.push_back(m.pool.manager.open_ticket().value());
    if (open.size() > 3) {
      ASSERT_OK(m.pool.manager.retire(open.front()));
      open.pop_front();
    }
    m.pool.clock.advance(4 * kSecond);
    m.pool.publish();
    report = m.check_after(4);
  }
  EXPECT_EQ(codes(report), Codes{ticket_late}) << text_of(report);
}

TEST(PoolHealthTest, AHolderThatIsGoneOrReplacedIsNotLateByOldDetails) {
  for (const bool replaced : {false, true}) {
    MonitoredPool m({.run_thread = false});
    ASSERT_OK(m.monitor->watch(m.pool.publisher));
    const std::int64_t deadline = m.clock.now_ns() + 100 * kSecond;
    const HolderId punctual =
        m.pool.manager.register_holder({.purpose = "request", .deadline_ns = deadline}).value();
    ASSERT_TRUE(m.check_after(1).healthy);
    m.pool.publish();  // with details, which show the holder
    // It never held a block: that it leaves releases none.
    ASSERT_OK(m.pool.manager.unregister_holder(punctual));
    if (replaced) static_cast<void>(m.pool.manager.register_holder({.purpose = "request"}).value());
    m.pool.publish();  // without
    const HealthReport report = m.check_after(200);
    EXPECT_TRUE(report.healthy) << replaced << text_of(report);
  }
}

TEST(PoolHealthTest, AHolderIsLateByTheDetailsThatWerePublished) {
  MonitoredPool m({.holder_grace_ns = 5 * kSecond, .run_thread = false});
  ASSERT_OK(m.monitor->watch(m.pool.publisher));
  const std::int64_t deadline = m.clock.now_ns() + 100 * kSecond;
  const HolderId tardy =
      m.pool.manager
          .register_holder({.number = 12, .owner = 3, .purpose = "export", .deadline_ns = deadline})
          .value();
  static_cast<void>(m.pool.manager.register_holder({.purpose = "for ever"}).value());
  ASSERT_TRUE(m.check_after(1).healthy);
  m.pool.publish();  // with the details that the check asked for
  ASSERT_TRUE(m.check_after(99).healthy);
  ASSERT_TRUE(m.check_after(5).healthy) << "the grace";
  HealthReport report = m.check_after(1);
  EXPECT_EQ(codes(report), Codes{holder_late}) << text_of(report);
  for (const std::string_view part : {"1 holders", "export 12 of owner 3"}) {
    EXPECT_HAS(report.reasons[0].text, part);
  }
  ASSERT_OK(m.pool.manager.unregister_holder(tardy));
  m.pool.publish();
  EXPECT_TRUE(m.check_after(1).healthy);
}

TEST(PoolHealthTest, AnAuditThatFailedIsCriticalAndComesBack) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher, "main"));
  ASSERT_TRUE(m.check_after(0).healthy);
  const LogCapture log(LogLevel::critical);
  parts_of(m.pool.manager).reserved = 65;
  m.pool.publish();
  HealthReport report = m.check_after(60);
  EXPECT_EQ(codes(report), Codes{accounts_violated}) << text_of(report);
  EXPECT_TRUE(log.contains(LogLevel::critical, "pool main: the audit failed"));
  m.monitor->acknowledge();
  EXPECT_EQ(codes(m.check_after(60)), Codes{accounts_violated});
  EXPECT_EQ(m.called.size(), 2U);
}

TEST(PoolHealthTest, ABalanceThatIsOffIsSeenWithoutAnAudit) {
  MonitoredPool m;
  PublishedPool unaudited(12, 0);
  ASSERT_OK(m.monitor->watch(unaudited.publisher, "other"));
  --parts_of(unaudited.manager).pool.mutable_counts().free;
  unaudited.publish();
  const HealthReport report = m.check_after(0);
  EXPECT_EQ(codes(report), Codes{accounts_violated});
  EXPECT_HAS(report.reasons[0].text, "free 11") << text_of(report);
  ++parts_of(unaudited.manager).pool.mutable_counts().free;
  unaudited.publish();
  EXPECT_EQ(codes(m.check_after(60)), Codes{accounts_violated}) << "not acknowledged";
  m.monitor->acknowledge();
  EXPECT_TRUE(m.check_after(60).healthy);
}

TEST(PoolHealthTest, PressureFollowsAvailableBlocksThatAreNotPromised) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher));
  ASSERT_TRUE(m.check_after(1).healthy);
  m.pool.add(4 * 40);
  const HolderId holder = m.pool.manager.register_holder({}).value();
  ASSERT_OK(m.pool.manager.reserve(holder, 22));
  m.pool.publish();
  HealthReport report = m.check_after(1);
  EXPECT_TRUE(report.healthy) << "pressure is no illness";
  EXPECT_EQ(report.pools[0].pressure, PressureLevel::critical) << "2 of 64 blocks";
  EXPECT_EQ(report.pools[0].pressure_entered, (std::array<std::uint64_t, 4>{0, 0, 1, 0}));
  ASSERT_EQ(m.events.size(), 1U);
  EXPECT_EQ(m.events[0].figures.available_blocks, 2);
  EXPECT_EQ(m.events[0].figures.total_vram_bytes, 0U) << "its device is not known";
}

TEST(PoolHealthTest, FreeVramOfTheDeviceCountsWhereItIsWatched) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher, "main", &m.device));
  m.allocate((1 << 24) - 4096);
  m.check_after(1);
  EXPECT_TRUE(m.events.empty());
  ASSERT_OK(m.monitor->watch(m.device));
  m.check_after(1);
  ASSERT_EQ(m.events.size(), 1U);
  EXPECT_EQ(m.events[0].to, PressureLevel::exhausted);
  EXPECT_TRUE(m.events[0].by_vram);
  EXPECT_TRUE(m.monitor->report().pools.at(0).pressure_by_vram);
  ASSERT_OK(m.monitor->unwatch(m.device));
  m.check_after(1);
  ASSERT_EQ(m.events.size(), 2U);
  EXPECT_EQ(m.events[1].to, PressureLevel::normal);
}

TEST(PoolHealthTest, ABurstOfEventsIsCalledBackInFullAndLoggedInBrief) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher, "main"));
  const LogCapture log(LogLevel::info);
  for (int i = 0; i < 10; ++i) {
    const SequenceId sequence = m.pool.add(4 * 64);
    m.pool.publish();
    m.monitor->check_now();
    ASSERT_OK(m.pool.tables.destroy(sequence));
    m.pool.publish();
    m.monitor->check_now();
  }
  EXPECT_EQ(m.events.size(), 20U);
  EXPECT_EQ(log.lines().size(), 3U);
  EXPECT_TRUE(log.contains(LogLevel::warning,
                           "pressure pool=\"main\" level=exhausted previous=normal cause=blocks "
                           "available_blocks=0 num_blocks=64"));
  EXPECT_TRUE(log.contains(LogLevel::warning, "level=normal previous=exhausted"));
  m.check_after(10);
  EXPECT_EQ(log.lines().size(), 4U);
  EXPECT_TRUE(log.contains(LogLevel::warning,
                           "pressure pool=\"main\" level=normal "
                           "changes_not_logged=17 worst=exhausted"));
}

TEST(PoolHealthTest, ACriticalLevelReachesASinkOfWarningsHoweverOftenTheFigureTrembled) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher, "main"));
  const LogCapture log(LogLevel::warning);
  const auto hold = [&](std::int32_t blocks) {
    const SequenceId sequence = m.pool.add(4 * blocks);
    m.pool.publish();
    m.monitor->check_now();
    ASSERT_OK(m.pool.tables.destroy(sequence));
    m.pool.publish();
    m.monitor->check_now();
  };
  for (int i = 0; i < 5; ++i) hold(55);
  EXPECT_EQ(m.events.size(), 10U) << "elevated and back";
  EXPECT_TRUE(log.lines().empty());
  hold(62);
  EXPECT_TRUE(log.contains(LogLevel::warning, "level=critical previous=normal"));
  EXPECT_TRUE(log.contains(LogLevel::warning, "level=normal previous=critical"));
  hold(62);
  EXPECT_EQ(log.lines().size(), 3U);
  m.monitor.reset();
  ASSERT_EQ(log.lines().size(), 4U) << "what was left out is told before nobody is there to";
  EXPECT_TRUE(log.contains(LogLevel::warning, "level=normal changes_not_logged=1 worst=critical"));
}

TEST(PoolHealthTest, PressureNamesItsCauseAndWhenItWasSeen) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher, "main", &m.device));
  EXPECT_EQ(m.monitor->report().pools.at(0).looked_ns, std::nullopt);
  m.pool.add(4 * 64);
  m.pool.publish();
  PoolHealth pool = m.check_after(1).pools.at(0);
  EXPECT_EQ(pool.pressure, PressureLevel::exhausted);
  EXPECT_FALSE(pool.pressure_by_vram);
  EXPECT_EQ(pool.looked_ns, m.clock.now_ns());
  m.clock.advance(5 * kSecond);
  const HealthReport later = m.monitor->report();
  EXPECT_EQ(later.now_ns - *later.pools.at(0).looked_ns, 5 * kSecond);
}

TEST(PoolHealthTest, AgesAreTheMonitorsWhateverThePublishersClockSays) {
  MonitoredPool m;  // whose pool has a clock of another epoch
  ASSERT_OK(m.monitor->watch(m.pool.publisher));
  ASSERT_OK(m.pool.manager.open_ticket());
  m.pool.publish();
  HealthReport report = m.check_after(1);
  const std::int64_t seen_ns = m.clock.now_ns();
  EXPECT_EQ(report.pools.at(0).published_ns, seen_ns);
  EXPECT_EQ(report.pools.at(0).oldest_ticket_ns, seen_ns);
  report = m.check_after(5);
  EXPECT_EQ(report.pools.at(0).published_ns, seen_ns);
  EXPECT_EQ(report.pools.at(0).oldest_ticket_ns, seen_ns);
  m.pool.publish();
  report = m.monitor->report();
  EXPECT_EQ(report.pools.at(0).published_ns, report.now_ns) << "no look has seen this one";
  EXPECT_EQ(report.pools.at(0).oldest_ticket_ns, seen_ns) << "but its ticket";
}

TEST(PoolHealthTest, NamesTellPoolsApart) {
  MonitoredPool m;
  PublishedPool other(12);
  const auto first = m.monitor->watch(m.pool.publisher);
  ASSERT_OK(first);
  EXPECT_FAILS(m.monitor->watch(other.publisher), failed_precondition, name);
  EXPECT_FAILS(m.monitor->watch(other.publisher, ""), invalid_argument, name);
  const auto second = m.monitor->watch(other.publisher, "other");
  ASSERT_OK(second);
  EXPECT_NE(*first, *second);
  ASSERT_OK(m.monitor->unwatch(*first));
  EXPECT_FAILS(m.monitor->unwatch(*first), not_found, name);
  const HealthReport report = m.monitor->report();
  ASSERT_EQ(report.pools.size(), 1U);
  EXPECT_EQ(report.pools[0].name, "other");
  ASSERT_OK(m.monitor->watch(m.pool.publisher));
}

TEST(PoolHealthTest, DetailsAskTheWriterForMore) {
  MonitoredPool m;
  ASSERT_OK(m.monitor->watch(m.pool.publisher, "main"));
  m.pool.add(9);
  m.pool.publish();
  m.pool.publish();
  EXPECT_EQ(m.monitor->details().pools.at(0).details.step, 0U) << "nobody had asked";
  m.pool.publish();
  const HealthDetails details = m.monitor->details();
  EXPECT_EQ(details.pools[0].name, "main");
  EXPECT_EQ(details.pools[0].details.step, 3U);
  EXPECT_EQ(details.pools[0].details.holders.size(), 1U);
}

TEST(PoolHealthTest, AKvCacheBringsItsDevice) {
  MonitoredPool m;
  auto cache = KvCache::create(
      m.device,
      {.layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 16, .dtype = DType::f16},
       .size = {.num_blocks = 32},
       .num_q_heads = 2,
       .num_threads = 1});
  ASSERT_OK(cache);
  const auto id = m.monitor->watch(*cache, "cache");
  ASSERT_OK(id);
  EXPECT_FAILS(m.monitor->watch(m.device), failed_precondition, device);
  HealthReport report = m.check_after(0);
  EXPECT_TRUE(report.healthy) << text_of(report);
  EXPECT_TRUE(report.resident);
  EXPECT_EQ(report.pools.at(0).snapshot.blocks.num_blocks, 32);
  EXPECT_GT(report.devices.at(0).usage.by_purpose[1].bytes, 0U) << "the arena";
  EXPECT_FAILS(m.monitor->watch(*cache, "cache"), failed_precondition, name);
  ASSERT_OK(m.monitor->unwatch(*id));
  ASSERT_OK(m.monitor->watch(*cache, "again"));
  EXPECT_EQ(m.monitor->report().devices.size(), 1U);
  m.monitor.reset();  // the cache goes first otherwise
}

}  // namespace
}  // namespace kvarena::test
