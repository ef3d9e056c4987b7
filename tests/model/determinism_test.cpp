// The same calls give the same ids, whatever else happens: histories are replayed from their log
// bit for bit, and the order in which simulated events complete changes nothing.

#include "kvarena/allocator/operation_log.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "model/model_driver.hpp"
#include "model/prefix_driver.hpp"
#include "model/replayed_log.hpp"
#include "support/pool_snapshot.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace kvarena::model {
namespace {

Game game(std::uint64_t seed, std::int64_t num_blocks, std::int32_t block_size) {
  Game game;
  game.name = "Determinism";
  game.pool = {.num_blocks = num_blocks,
               .watermark_blocks = num_blocks / 20,
               .max_holders = 30,
               .max_open_tickets = 8};
  game.tables = {.block_size_tokens = block_size, .max_sequences = 20, .max_append_tokens = 4096};
  game.longest_chunk = 60;
  game.seed = seed;
  game.operations = 4000;
  return game;
}

TEST(Determinism, ALogIsReplayedBitForBit) {
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U}) {
    Recorder first;
    Game played = game(seed, 48, 7);
    played.pool.log = &first;
    played.pool.eviction = kEvictionPolicies[seed % kEvictionPolicies.size()];
    ASSERT_EQ(ModelDriver(played).play(), "");
    const std::vector<Recorded> history = successes(first.operations);
    ASSERT_GT(history.size(), 1000U);
    ASSERT_LT(history.size(), first.operations.size()) << "refused calls are logged too";

    Recorder second;
    BlockManagerOptions options = played.pool;
    options.log = &second;
    BlockManager manager = BlockManager::create(options).value();
    std::map<std::uint64_t, Ticket> tickets;
    for (const Recorded& recorded : history) ASSERT_OK(repeat(manager, recorded, tickets));
    ASSERT_EQ(history.size(), second.operations.size());
    for (std::size_t i = 0; i < history.size(); ++i) {
      ASSERT_TRUE(history[i] == second.operations[i]) << "seed " << seed << ", operation " << i;
    }
    EXPECT_OK(manager.check_invariants());
  }
}

TEST(Determinism, EveryPrefixOfALogLeadsToTheSameState) {
  Recorder log;
  BlockManager original =
      BlockManager::create({.num_blocks = 40, .max_holders = 20, .log = &log}).value();
  BlockTables tables =
      BlockTables::create(original, {.block_size_tokens = 4, .max_sequences = 16}).value();
  BlockManager twin = BlockManager::create({.num_blocks = 40, .max_holders = 20}).value();
  std::mt19937_64 random(7);
  std::vector<SequenceId> living;
  std::size_t replayed = 0;
  std::map<std::uint64_t, Ticket> tickets;
  for (int step = 0; step < 600; ++step) {
    if (living.size() < 8 && random() % 3 == 0) {
      living.push_back(tables.create_sequence().value());
    } else if (!living.empty() && random() % 5 == 0) {
      const std::size_t victim = random() % living.size();
      ASSERT_OK(tables.destroy(living[victim]));
      living.erase(living.begin() + static_cast<std::ptrdiff_t>(victim));
    } else {
      static_cast<void>(tables.append_one_each(living));  // may be exhausted: changes nothing
    }
    for (; replayed < log.operations.size(); ++replayed) {
      const Recorded& recorded = log.operations[replayed];
      if (recorded.operation.outcome != StatusCode::ok) continue;
      ASSERT_OK(repeat(twin, recorded, tickets));
    }
    const test::PoolSnapshot one = test::snapshot_of(original);
    const test::PoolSnapshot two = test::snapshot_of(twin);
    ASSERT_EQ(one.counts, two.counts);
    ASSERT_EQ(one.states, two.states);
    ASSERT_EQ(one.references, two.references);
  }
}

// ---- events -------------------------------------------------------------------------------------

/// Work on another stream: it completes when the test says so, in any order.
class SimulatedEvents {
 public:
  void queue(Ticket ticket) { pending_.push_back(ticket); }
  /// Completes some of the pending work, chosen by `random`.
  void let_some_complete(std::mt19937_64& random) {
    std::shuffle(pending_.begin(), pending_.end(), random);
    for (std::uint64_t n = random() % (pending_.size() + 1); n > 0; --n) complete(pending_.back());
  }
  /// What an engine does when it must go on: the event is waited for.
  void wait(Ticket ticket) { complete(ticket); }
  bool is_complete(Ticket ticket) const {
    return std::find(completed_.begin(), completed_.end(), ticket) != completed_.end();
  }
  /// In the order of completion.
  const std::vector<Ticket>& completed() const { return completed_; }

 private:
  void complete(Ticket ticket) {
    if (std::erase(pending_, ticket) != 0) completed_.push_back(ticket);
  }
  std::vector<Ticket> pending_;
  std::vector<Ticket> completed_;
};

struct DecodeRun {
  std::vector<std::int64_t> ids;   // every slot handed out, and -1 for every refusal
  std::vector<Ticket> completion;  // the order of events
};

/// A decode loop whose ended sequences are still read by a copy on another stream. The n-th step
/// retires the ticket of step n - lag and waits for it if need be; with `eager` it instead retires
/// whatever has completed.
DecodeRun decode(std::uint64_t event_seed, bool eager) {
  constexpr std::size_t kLag = 3;
  BlockManager manager =
      BlockManager::create({.num_blocks = 24, .max_open_tickets = eager ? 1000 : 8}).value();
  BlockTables tables = BlockTables::create(manager, {.block_size_tokens = 4}).value();
  SimulatedEvents events;
  std::mt19937_64 event_random(event_seed);
  std::mt19937_64 random(11);
  std::deque<Ticket> in_flight;
  std::vector<SequenceId> living;
  DecodeRun run;
  for (int step = 0; step < 300; ++step) {
    events.let_some_complete(event_random);
    if (eager) {
      for (const Ticket ticket : std::vector<Ticket>(events.completed())) {
        if (!manager.is_open(ticket)) continue;
        EXPECT_OK(manager.retire(ticket));
      }
    } else if (in_flight.size() > kLag) {
      events.wait(in_flight.front());
      EXPECT_OK(manager.retire(in_flight.front()));
      in_flight.pop_front();
    }
    if (living.size() < 5) living.push_back(tables.create_sequence().value());
    const Result<AppendResult> grown = tables.append_one_each(living);
    if (grown) {
      run.ids.insert(run.ids.end(), grown->slots.begin(), grown->slots.end());
    } else {
      run.ids.push_back(-1);
    }
    const Ticket ticket = manager.open_ticket().value();
    events.queue(ticket);
    in_flight.push_back(ticket);
    if (!grown || random() % 2 == 0) {
      const std::size_t ended = random() % living.size();
      EXPECT_OK(tables.destroy(living[ended], ticket));
      living.erase(living.begin() + static_cast<std::ptrdiff_t>(ended));
    }
    EXPECT_OK(manager.check_invariants());
  }
  run.completion = events.completed();
  return run;
}

TEST(Determinism, TheOrderInWhichEventsCompleteChangesNoId) {
  const DecodeRun reference = decode(0, false);
  ASSERT_GT(reference.ids.size(), 500U);
  std::set<std::vector<Ticket>> orders{reference.completion};
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const DecodeRun run = decode(seed, false);
    orders.insert(run.completion);
    ASSERT_EQ(run.ids, reference.ids) << "event order of seed " << seed;
  }
  EXPECT_GT(orders.size(), 30U) << "the orders of completion must really differ";
}

// The same loop retiring what has completed does get other ids: the permutations have teeth.
TEST(Determinism, RetiringWhateverHasCompletedWouldChangeIds) {
  std::set<std::vector<std::int64_t>> histories;
  for (std::uint64_t seed = 0; seed < 10; ++seed) histories.insert(decode(seed, true).ids);
  EXPECT_GT(histories.size(), 1U);
}

TEST(Determinism, EqualManagersAgreeOnIdsAndOnTheCallThatFails) {
  Recorder a;
  Recorder b;
  for (Recorder* log : {&a, &b}) {
    Game played = game(99, 20, 16);
    played.pool.log = log;
    ASSERT_EQ(ModelDriver(played).play(), "");
  }
  ASSERT_EQ(a.operations.size(), b.operations.size());
  EXPECT_TRUE(a.operations == b.operations);
}

// Ranks draw keys of their own for the hashes of a prefix cache, and tell equal tokens.
TEST(Determinism, TheKeyOfAPrefixCacheChangesNoOperationAndNoId) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Recorder a;
    Recorder b;
    for (Recorder* log : {&a, &b}) {
      PrefixDriver driver(
          {.name = "Keys",
           .num_blocks = 20,
           .max_sequences = 8,
           .duplicates = seed % 2 == 0 ? DuplicateRule::share : DuplicateRule::duplicate,
           .has_limits = seed % 3 == 0,
           .shares_parts = seed % 2 == 1,
           .eviction = kEvictionPolicies[seed % kEvictionPolicies.size()],
           .hash_key = {log == &a ? 1 : 0xfeedU, seed},
           .log = log,
           .seed = seed});
      ASSERT_EQ(driver.play(3000), "");
      ASSERT_GT(driver.outcomes().at("append: ok"), 100U);
    }
    ASSERT_GT(a.operations.size(), 1000U);
    ASSERT_EQ(a.operations.size(), b.operations.size());
    for (std::size_t i = 0; i < a.operations.size(); ++i) {
      ASSERT_TRUE(a.operations[i] == b.operations[i]) << "seed " << seed << ", operation " << i;
    }
  }
}

}  // namespace
}  // namespace kvarena::model
