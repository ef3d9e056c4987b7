// Tickets and the events behind them.

#include "support/faulty_device.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"
#include "step/ticket_events.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvarena {
namespace {

class TicketEventsTest : public ::testing::Test {
 protected:
  /// A stream with one piece of work that has not run.
  StreamId busy_stream() {
    const StreamId stream = *host->create_stream();
    EXPECT_OK(host->launch_host([](void*) { return Status{}; }, nullptr, stream));
    return stream;
  }
  bool is_open(Ticket ticket) const { return manager.is_open(ticket); }

  std::unique_ptr<HostDevice> host = HostDevice::create({.streams = HostStreams::manual}).value();
  test::FaultyDevice device{*host};
  BlockManager manager = BlockManager::create({.num_blocks = 4, .max_open_tickets = 4}).value();
  TicketEvents events = TicketEvents::create(device, 4).value();
};

TEST_F(TicketEventsTest, RetiresByStepAndWaits) {
  const StreamId first = busy_stream();
  const StreamId second = busy_stream();
  const Ticket a = *events.fence(manager, first, 0);
  const Ticket b = *events.fence(manager, second, 1);
  ASSERT_OK(events.retire_through(manager, 0));
  EXPECT_FALSE(is_open(a));
  EXPECT_TRUE(is_open(b));
  EXPECT_FALSE(*host->run_one(first)) << "the wait ran it";
  EXPECT_TRUE(*host->run_one(second)) << "nobody waited for it";
  ASSERT_OK(events.retire_through(manager, 5));
  EXPECT_FALSE(is_open(b));
}

TEST_F(TicketEventsTest, EagerRetiresWhatIsOverAndLeavesTheRest) {
  const StreamId slow = busy_stream();
  const StreamId fast = busy_stream();
  const Ticket a = *events.fence(manager, slow, 0);
  const Ticket b = *events.fence(manager, fast, 0);
  ASSERT_OK(events.retire_completed(manager));
  EXPECT_TRUE(is_open(a) && is_open(b));
  ASSERT_TRUE(*host->run_one(fast));
  ASSERT_OK(events.retire_completed(manager));
  EXPECT_TRUE(is_open(a));
  EXPECT_FALSE(is_open(b));
  ASSERT_OK(events.retire_through(manager, 0));
  EXPECT_FALSE(is_open(a));
}

TEST_F(TicketEventsTest, EventsAreUsedAgain) {
  const StreamId stream = *host->create_stream();
  for (std::uint64_t step = 0; step < 50; ++step) {
    for (int i = 0; i < 4; ++i) ASSERT_OK(events.fence(manager, stream, step));
    EXPECT_FAILS(events.fence(manager, stream, step), exhausted, ticket);
    ASSERT_OK(events.retire_through(manager, step));
  }
}

TEST_F(TicketEventsTest, AFailedCallLeavesNoTicketOpenAndCanBeRepeated) {
  const StreamId stream = busy_stream();
  device.fail_after(0);
  EXPECT_FAILS(events.fence(manager, stream, 0), device_error, none);
  EXPECT_FAILS(events.fence(manager, StreamId{999}, 0), not_found, stream);
  std::vector<Ticket> tickets;
  for (int i = 0; i < 4; ++i) tickets.push_back(*events.fence(manager, stream, 0));
  device.fail_after(0);
  EXPECT_FAILS(events.retire_through(manager, 0), device_error, none);
  EXPECT_TRUE(is_open(tickets[0]));
  ASSERT_OK(events.retire_through(manager, 0));
  for (const Ticket ticket : tickets) EXPECT_FALSE(is_open(ticket));
}

TEST_F(TicketEventsTest, WaitForAllRetiresNothing) {
  const StreamId stream = busy_stream();
  const Ticket ticket = *events.fence(manager, stream, 0);
  events.wait_for_all();
  EXPECT_FALSE(*host->run_one(stream));
  EXPECT_TRUE(is_open(ticket));
}

}  // namespace
}  // namespace kvarena
