// Pools with groups are deterministic too: a log is replayed call by call, and a pool of one group
// is the pool without groups.

#include "model/group_world.hpp"
#include "model/replayed_log.hpp"
#include "support/pool_snapshot.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace kvarena::model {
namespace {

/// Makes the calls of a history in a pool with groups: the entries of an allocation are one call.
/// With `one_by_one` each entry is a call. Returns the place of the first call that was refused or
/// gave other ids, or the number of entries.
std::size_t replay_groups(BlockManager& manager, const std::vector<Recorded>& history,
                          bool one_by_one) {
  std::map<std::uint64_t, Ticket> tickets;
  for (std::size_t i = 0; i < history.size(); ++i) {
    const std::size_t first = i;
    if (history[i].operation.kind != OperationKind::allocate) {
      if (!repeat(manager, history[i], tickets)) return first;
      continue;
    }
    std::vector<HolderDemand> demands;
    std::vector<BlockId> expected;
    for (;; ++i) {
      const Operation& its = history[i].operation;
      demands.push_back({.holder = its.holder,
                         .count = static_cast<std::uint32_t>(its.count),
                         .urgency = static_cast<Urgency>(its.flag),
                         .group = its.group});
      expected.insert(expected.end(), history[i].ids.begin(), history[i].ids.end());
      if (one_by_one || its.left_in_call == 0) break;
    }
    std::vector<BlockId> ids(expected.size());
    std::vector<Generation> generations(ids.size());
    if (!manager.allocate_each(demands, ids, generations) || ids != expected) return first;
  }
  return history.size();
}

/// Tables of several kinds in a pool that is too small for them, so that calls take single blocks.
GroupGame tight_groups(OperationLog* log) {
  return {.name = "Tight",
          .groups = {{PagedKind::full, 4},
                     {PagedKind::window, 4, 16, 5},
                     {.kind = PagedKind::state, .num_parts = 2, .mode = StateMode::read_write}},
          .token_units = {2, 5, 7},
          .page_units = 40,
          .num_pages = 40,
          .max_sequences = 6,
          .longest = 200,
          .checkpoint_every = 12,
          .has_prefix_cache = true,
          .log = log};
}

TEST(GroupDeterminism, ALogIsReplayedCallByCall) {
  int differing = 0;
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U, 5U, 6U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Recorder first;
    GroupWorld world(tight_groups(&first), seed);
    const auto wrong = world.play(6000);
    ASSERT_FALSE(wrong.has_value()) << *wrong;
    const std::vector<Recorded> history = successes(first.operations);
    ASSERT_GT(history.size(), 1000U);
    ASSERT_LT(history.size(), first.operations.size()) << "refused calls are logged too";

    Recorder second;
    BlockManagerOptions options{.num_blocks = world.manager().num_pages(),
                                .max_holders = 64,
                                .max_open_tickets = 4,
                                .log = &second,
                                .groups = world.manager().groups()};
    BlockManager manager = BlockManager::create(options).value();
    ASSERT_EQ(replay_groups(manager, history, false), history.size());
    ASSERT_TRUE(history == second.operations);
    EXPECT_TRUE(test::snapshot_of(manager) == test::snapshot_of(world.manager()));
    EXPECT_OK(manager.check_invariants());

    options.log = nullptr;
    BlockManager other = BlockManager::create(options).value();
    differing += replay_groups(other, history, true) < history.size() ? 1 : 0;
  }
  EXPECT_GT(differing, 0) << "the boundary of a call matters in these games";
}

/// Makes random calls on two pools, and expects that both give the same ids, evict the same blocks
/// and refuse the same calls.
class Twins {
 public:
  Twins(BlockManager& one, BlockManager& two, std::uint64_t seed)
      : pools_{&one, &two}, random_(seed) {
    for (int i = 0; i < 4; ++i) {
      const HolderId id = one.register_holder({}).value();
      EXPECT_EQ(two.register_holder({}).value(), id);
      holders_.push_back(id);
    }
  }
  void play(int operations) {
    while (operations-- > 0 && !::testing::Test::HasFailure()) {
      const std::uint64_t kind = random_() % 16;
      if (kind < 7) {
        take();
      } else if (kind == 7) {
        const HolderId holder = holders_[random_() % holders_.size()];
        const auto count = static_cast<std::int64_t>(random_() % 4);
        both([&](BlockManager& m) { return m.reserve(holder, count); });
      } else if (kind == 8) {
        const BlockId id(static_cast<std::int32_t>(random_() % 20));
        both([&](BlockManager& m) { return m.quarantine(id).status(); });
        both([&](BlockManager& m) { return m.restore(id); });
      } else if (!held_.empty()) {
        give(random_() % held_.size(), kind < 11);
      }
    }
  }
  int evicted() const { return evicted_; }

 private:
  struct Held {
    HolderId holder;
    std::vector<BlockId> ids;
    std::vector<Generation> generations;
  };
  template <class Call>
  bool both(Call call) {
    const Status one = call(*pools_[0]);
    const Status two = call(*pools_[1]);
    EXPECT_EQ(one.code, two.code) << describe(one) << "; " << describe(two);
    return one.is_ok();
  }
  /// Blocks for one holder or two; some of them are published.
  void take() {
    std::vector<HolderDemand> demands;
    const std::size_t first = random_() % holders_.size();
    for (std::size_t i = 0; i <= random_() % 2; ++i) {
      demands.push_back({.holder = holders_[(first + i) % holders_.size()],
                         .count = static_cast<std::uint32_t>(random_() % 5)});
    }
    std::size_t count = 0;
    for (const HolderDemand& demand : demands) count += demand.count;
    std::vector<BlockId> ids[2];
    std::vector<Generation> generations[2];
    std::vector<BlockId> gone[2];
    int pool = 0;
    const bool is_taken = both([&](BlockManager& m) {
      ids[pool].resize(count);
      generations[pool].resize(count);
      const auto taken = m.allocate_each(demands, ids[pool], generations[pool]);
      if (taken) gone[pool].assign(m.evicted().begin(), m.evicted().end());
      ++pool;
      return taken.status();
    });
    if (!is_taken) return;
    EXPECT_EQ(ids[0], ids[1]);
    EXPECT_EQ(generations[0], generations[1]);
    EXPECT_EQ(gone[0], gone[1]);
    evicted_ += static_cast<int>(gone[0].size());
    std::size_t at = 0;
    for (const HolderDemand& demand : demands) {
      const auto begin = static_cast<std::ptrdiff_t>(at);
      const auto end = static_cast<std::ptrdiff_t>(at + demand.count);
      held_.push_back({demand.holder,
                       {ids[0].begin() + begin, ids[0].begin() + end},
                       {generations[0].begin() + begin, generations[0].begin() + end}});
      at += demand.count;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (random_() % 2 == 0) continue;
      both([&](BlockManager& m) {
        return m.set_content(ids[0][i], generations[0][i], BlockContent::published);
      });
    }
  }
  void give(std::size_t which, bool waits) {
    const Held held = held_[which];
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
    both([&](BlockManager& m) {
      if (!waits) return m.release(held.holder, held.ids, held.generations);
      const Ticket ticket = m.open_ticket().value();
      const Status status = m.release_after(ticket, held.holder, held.ids, held.generations);
      EXPECT_OK(m.retire(ticket));
      return status;
    });
  }

  BlockManager* pools_[2];
  std::mt19937_64 random_;
  std::vector<HolderId> holders_;
  std::vector<Held> held_;
  int evicted_ = 0;
};

TEST(GroupDeterminism, APoolOfOneGroupIsThePoolWithoutGroups) {
  const BlockGroup group[] = {{.blocks_per_page = 1, .block_bytes = 1000}};
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Recorder logs[2];
    BlockManagerOptions options{.num_blocks = 20,
                                .watermark_blocks = 2,
                                .max_holders = 6,
                                .max_open_tickets = 3,
                                .log = &logs[0]};
    BlockManager plain = BlockManager::create(options).value();
    options.log = &logs[1];
    options.groups = group;
    BlockManager grouped = BlockManager::create(options).value();
    Twins twins(plain, grouped, seed);
    twins.play(4000);
    EXPECT_GT(twins.evicted(), 100);
    for (Recorded& entry : logs[1].operations) entry.operation.left_in_call = 0;
    EXPECT_TRUE(logs[0].operations == logs[1].operations);
    EXPECT_OK(grouped.check_invariants());
  }
}

}  // namespace
}  // namespace kvarena::model
