// What a publisher shows: figures, pending work, ticket ages, details. The audit has its own file.

#include "support/status_matchers.hpp"
#include "unit/step/step_publisher_fixture.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvarena::test {
namespace {

TEST(StepPublisher, CreatePublishesTheFiguresOfThatMoment) {
  PublishedPool pool(12);
  const PoolSnapshot seen = pool.publisher.snapshot();
  EXPECT_EQ(seen.step, 0U);
  EXPECT_EQ(seen.published_ns, pool.clock.now_ns());
  EXPECT_EQ(seen.blocks.num_blocks, 12);
  EXPECT_EQ(seen.blocks.free, 12);
  EXPECT_EQ(seen.open_tickets, 0);
  EXPECT_EQ(seen.oldest_ticket, kNoTicket);
  EXPECT_FALSE(pool.publisher.has_pending_work());
  EXPECT_EQ(pool.publisher.details().step, 0U);
  EXPECT_EQ(pool.publisher.details().explanation.usable, 12);
  EXPECT_TRUE(pool.publisher.details().holders.empty());
}

TEST(StepPublisher, ANegativeSliceIsRefused) {
  PublishedPool pool(12);
  const auto made = StepPublisher::create(pool.manager, pool.tables, {.audit_blocks = -1});
  EXPECT_REFUSES(made, invalid_argument, audit_blocks);
}

TEST(StepPublisher, FiguresAreThoseOfThePublication) {
  PublishedPool pool(12);
  const SequenceId sequence = pool.add(9);
  EXPECT_EQ(pool.publisher.snapshot().blocks.referenced, 0) << "nothing published yet";
  pool.clock.advance(41);
  const PoolSnapshot seen = pool.publish();
  EXPECT_EQ(seen.step, 1U);
  EXPECT_EQ(seen.published_ns, pool.clock.now_ns());
  EXPECT_EQ(seen.blocks.referenced, 3);
  EXPECT_EQ(seen.blocks.references, 3);
  EXPECT_EQ(seen.tables.sequences, 1);
  EXPECT_EQ(seen.tables.tokens, 9);
  EXPECT_EQ(seen.tables.entries, 3);
  EXPECT_EQ(seen.tables.waste_tokens, 3);
  ASSERT_OK(pool.tables.destroy(sequence));
  EXPECT_EQ(pool.publisher.snapshot().tables.tokens, 9);
  EXPECT_EQ(pool.publish().tables.tokens, 0);
}

TEST(StepPublisher, AStepIsPendingUntilItIsPublished) {
  PublishedPool pool(12);
  EXPECT_EQ(pool.publisher.step_began_ns(), std::nullopt);
  pool.clock.advance(100);
  pool.publisher.begin_step();
  pool.clock.advance(100);
  EXPECT_TRUE(pool.publisher.has_pending_work());
  EXPECT_EQ(pool.publisher.step_began_ns(), pool.clock.now_ns() - 100);
  pool.publish();
  EXPECT_FALSE(pool.publisher.has_pending_work());
  EXPECT_EQ(pool.publisher.step_began_ns(), std::nullopt);
}

TEST(StepPublisher, OpenTicketsArePendingWork) {
  PublishedPool pool(12);
  const Ticket ticket = pool.manager.open_ticket().value();
  pool.publish();
  EXPECT_TRUE(pool.publisher.has_pending_work());
  ASSERT_OK(pool.manager.retire(ticket));
  pool.publish();
  EXPECT_FALSE(pool.publisher.has_pending_work());
}

TEST(StepPublisher, TheOldestTicketHasTheAgeOfItsFirstPublication) {
  PublishedPool pool(12);
  const Ticket first = pool.manager.open_ticket().value();
  const std::int64_t first_ns = pool.publish().published_ns;
  const Ticket second = pool.manager.open_ticket().value();
  const Ticket third = pool.manager.open_ticket().value();
  const std::int64_t second_ns = pool.publish().published_ns;
  PoolSnapshot seen = pool.publish();
  EXPECT_EQ(seen.open_tickets, 3);
  EXPECT_EQ(seen.oldest_ticket, first);
  EXPECT_EQ(seen.oldest_ticket_ns, first_ns);
  ASSERT_OK(pool.manager.retire(second));
  EXPECT_EQ(pool.publish().oldest_ticket_ns, first_ns);
  ASSERT_OK(pool.manager.retire(first));
  seen = pool.publish();
  EXPECT_EQ(seen.oldest_ticket, third);
  EXPECT_EQ(seen.oldest_ticket_ns, second_ns) << "seen together with the second";
  ASSERT_OK(pool.manager.retire(third));
  seen = pool.publish();
  EXPECT_EQ(seen.oldest_ticket, kNoTicket);
  EXPECT_EQ(seen.oldest_ticket_ns, 0);
}

TEST(StepPublisher, TicketAgesHoldWhilePlacesAreUsedAgain) {
  PublishedPool pool(12);  // four tickets open at most
  Ticket kept = pool.manager.open_ticket().value();
  std::int64_t kept_ns = pool.publish().published_ns;
  for (int round = 0; round < 40; ++round) {
    // More tickets come and go between two publications than can be open.
    for (int i = 0; i < 3; ++i) ASSERT_OK(pool.manager.retire(*pool.manager.open_ticket()));
    EXPECT_EQ(pool.publish().oldest_ticket_ns, kept_ns);
    ASSERT_OK(pool.manager.retire(kept));
    for (int i = 0; i < 9; ++i) ASSERT_OK(pool.manager.retire(*pool.manager.open_ticket()));
    kept = pool.manager.open_ticket().value();
    const PoolSnapshot seen = pool.publish();
    kept_ns = seen.published_ns;
    EXPECT_EQ(seen.oldest_ticket, kept);
    EXPECT_EQ(seen.oldest_ticket_ns, kept_ns);
  }
}

TEST(StepPublisher, TicketsOpenAtCreateAreSeenThen) {
  PublishedPool pool(12);
  const Ticket ticket = pool.manager.open_ticket().value();
  pool.clock.advance(7);
  const StepPublisher late =
      StepPublisher::create(pool.manager, pool.tables, {.clock = &pool.clock}).value();
  EXPECT_EQ(late.snapshot().oldest_ticket, ticket);
  EXPECT_EQ(late.snapshot().oldest_ticket_ns, pool.clock.now_ns());
}

TEST(StepPublisher, DetailsComeOnlyAfterARequest) {
  PublishedPool pool(12);
  pool.add(5);
  pool.publish();
  EXPECT_EQ(pool.publisher.details().step, 0U) << "nobody asked";
  pool.publisher.request_details();
  EXPECT_EQ(pool.publisher.details().step, 0U) << "the writer has not been there yet";
  pool.publish();
  const PoolDetails details = pool.publisher.details();
  EXPECT_EQ(details.step, 2U);
  EXPECT_EQ(details.published_ns, pool.clock.now_ns());
  ASSERT_EQ(details.holders.size(), 1U);
  EXPECT_EQ(details.holders[0].references, 2);
  EXPECT_EQ(details.explanation.requested, 1);
  EXPECT_EQ(details.explanation.num_largest, 1U);
  EXPECT_EQ(details.explanation.stats.free, 10);
  pool.publish();
  EXPECT_EQ(pool.publisher.details().step, 2U) << "one request, one answer";
}

auto fields_of(const HolderReport& report) {
  return std::tuple(report.holder, report.number, report.owner, std::string(report.purpose),
                    report.references, report.reserved, report.since_ns, report.deadline_ns);
}

TEST(StepPublisher, DetailsNameEveryOfAThousandHolders) {
  constexpr std::int32_t kHolders = 1024;
  PublishedPool pool(4 * kHolders, 64, kHolders);
  std::vector<SequenceId> sequences;
  for (std::int32_t i = 0; i < kHolders; ++i) sequences.push_back(pool.add(1 + i % 13));
  // Places of some are used again: order by id is not order by place.
  for (std::size_t i = 0; i < sequences.size(); i += 3) {
    ASSERT_OK(pool.tables.destroy(sequences[i]));
    sequences[i] = pool.add(2);
  }
  pool.publisher.request_details();
  pool.publish();
  const std::vector<HolderReport> published = pool.publisher.details().holders;
  const std::vector<HolderReport> expected = pool.manager.holders();
  ASSERT_EQ(published.size(), std::size_t{kHolders});
  ASSERT_EQ(published.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(fields_of(published[i]), fields_of(expected[i])) << i;
  }
}

TEST(StepPublisher, CanBeMoved) {
  PublishedPool pool(12);
  StepPublisher moved = std::move(pool.publisher);
  moved.publish({.steps_ended = 3});
  pool.publisher = std::move(moved);
  EXPECT_EQ(pool.publisher.snapshot().step, 3U);
}

}  // namespace
}  // namespace kvarena::test
