// Readers while a pool's thread publishes step after step: what they see is whole, balanced and
// never goes back.

#include "support/status_matchers.hpp"
#include "unit/step/step_publisher_fixture.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvarena::test {
namespace {

constexpr std::uint64_t kSteps = 100'000;
constexpr std::int64_t kBlocks = 60;

/// What one reader saw.
struct Seen {
  std::uint64_t snapshots = 0;
  std::uint64_t details = 0;  ///< different ones
  std::uint64_t wrong = 0;
};

/// Figures of one publication that belong together, whatever the step.
bool agrees(const PoolSnapshot& now) {
  const BlockStats& blocks = now.blocks;
  bool is_right = blocks.balanced() && blocks.num_blocks == kBlocks;
  is_right &= now.published_ns == static_cast<std::int64_t>(now.step);
  is_right &= blocks.references == now.tables.entries;
  is_right &= now.tables.tokens + now.tables.waste_tokens == 4 * now.tables.entries;
  is_right &= blocks.holders == now.tables.sequences;
  is_right &= (now.open_tickets == 0) == (now.oldest_ticket == kNoTicket);
  is_right &= now.oldest_ticket_ns <= now.published_ns;
  return is_right && now.audit.failure.is_ok();
}

bool goes_on(const PoolSnapshot& before, const PoolSnapshot& now) {
  return now.step >= before.step && now.published_ns >= before.published_ns &&
         now.blocks.allocations >= before.blocks.allocations &&
         now.blocks.releases >= before.blocks.releases &&
         now.tables.sequences_ever >= before.tables.sequences_ever &&
         now.audit.blocks_checked >= before.audit.blocks_checked &&
         now.audit.passes >= before.audit.passes;
}

bool agrees(const PoolDetails& details) {
  std::int64_t references = 0;
  for (const HolderReport& holder : details.holders) references += holder.references;
  const BlockStats& blocks = details.explanation.stats;
  return blocks.balanced() && references == blocks.references &&
         static_cast<std::int64_t>(details.holders.size()) == blocks.holders;
}

/// Reads until `done`; counts itself into `served` once it has seen something of each kind.
Seen watch(StepPublisher& publisher, const std::atomic<bool>& done, bool reads_details,
           std::atomic<int>& served) {
  Seen seen;
  bool is_served = false;
  PoolSnapshot last = publisher.snapshot();
  std::uint64_t last_details = 0;
  while (!done) {
    const PoolSnapshot now = publisher.snapshot();
    seen.wrong += agrees(now) && goes_on(last, now) ? 0U : 1U;
    seen.snapshots += now.step != last.step ? 1U : 0U;
    last = now;
    static_cast<void>(publisher.has_pending_work());
    if (reads_details) {
      publisher.request_details();
      const PoolDetails details = publisher.details();
      seen.wrong += agrees(details) && details.step >= last_details ? 0U : 1U;
      seen.details += details.step != last_details ? 1U : 0U;
      last_details = details.step;
    }
    if (!is_served && seen.snapshots > 0 && (seen.details > 0 || !reads_details)) {
      is_served = true;
      ++served;
    }
  }
  return seen;
}

/// Sequences come, grow and go, some against a ticket.
class Churn {
 public:
  explicit Churn(PublishedPool& pool) : pool_(pool) {}

  Status step(std::uint64_t number) {
    pool_.publisher.begin_step();
    if (tickets_.size() == 3) {
      if (Status status = pool_.manager.retire(tickets_.front()); !status) return status;
      tickets_.erase(tickets_.begin());
    }
    if (sequences_.size() == 6) {
      Ticket ticket = kNoTicket;
      if (number % 2 == 0) tickets_.push_back(ticket = pool_.manager.open_ticket().value());
      if (Status status = pool_.tables.destroy(sequences_[number % 6], ticket); !status) {
        return status;
      }
      sequences_.erase(sequences_.begin() + static_cast<std::ptrdiff_t>(number % 6));
    }
    sequences_.push_back(pool_.add(1 + static_cast<std::int32_t>(number % 14)));
    const Status status = pool_.tables.append_one_each(sequences_).status();
    pool_.clock.advance(1);
    pool_.publisher.publish({.steps_ended = number});
    return status;
  }

 private:
  PublishedPool& pool_;
  std::vector<SequenceId> sequences_;
  std::vector<Ticket> tickets_;
};

TEST(StepPublisherThreads, ScrapesDuringChurnAreWhole) {
  PublishedPool pool(kBlocks, 7);
  std::atomic<bool> done{false};
  std::atomic<int> served{0};
  std::array<Seen, 3> seen;
  std::vector<std::thread> readers;
  for (std::size_t i = 0; i < seen.size(); ++i) {
    readers.emplace_back([&, i] { seen[i] = watch(pool.publisher, done, i == 0, served); });
  }
  Churn churn(pool);
  Status status;
  std::uint64_t steps = 0;
  // A reader may come late: it goes on until each has seen something.
  while (status && (steps < kSteps || served < 3)) {
    status = churn.step(++steps);
    if (steps % 1024 == 0) std::this_thread::yield();
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_OK(status);
  EXPECT_OK(pool.manager.check_invariants());
  EXPECT_EQ(pool.publisher.snapshot().step, steps);
  for (const Seen& one : seen) {
    EXPECT_EQ(one.wrong, 0U);
    EXPECT_GT(one.snapshots, 0U);
  }
  EXPECT_GT(seen[0].details, 0U);
}

}  // namespace
}  // namespace kvarena::test
