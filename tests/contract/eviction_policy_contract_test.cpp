// One suite for every eviction policy of a BlockManager: what is evicted in which order, what is
// never evicted, and that equal calls evict equal blocks. The model test has the order of every
// policy in full.

#include "eviction_policy_contract.hpp"
#include "support/environment.hpp"
#include "support/heap_counter.hpp"
#include "support/pool_snapshot.hpp"
#include "support/status_matchers.hpp"
#include "support/violations.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace kvarena {
namespace {

using test::Handle;

class EvictionPolicyContract : public test::EvictionPolicyTest {};

TEST_P(EvictionPolicyContract, TheOptionIsShown) {
  create(3);
  EXPECT_EQ(manager_->eviction(), GetParam().policy);
  EXPECT_EQ(manager_->clock_time(), 0);
  EXPECT_TRUE(manager_->evicted().empty());
}

TEST_P(EvictionPolicyContract, BlocksReleasedOneByOneByTurnsAreEvictedInThatOrder) {
  create(4);
  const HolderId other = manager_->register_holder({.purpose = "other"}).value();
  const std::vector<Handle> all = published(4);
  for (const std::size_t i : {2U, 0U, 3U, 1U}) {
    release(all[i]);
    // A change to the evictable blocks in between, so that no two are of one run.
    ASSERT_OK(manager_->retain(other, std::span(&all[i].id, 1), std::span(&all[i].generation, 1)));
    ASSERT_OK(manager_->release(other, std::span(&all[i].id, 1), std::span(&all[i].generation, 1)));
  }
  EXPECT_EQ(drained(), (std::vector{2, 0, 3, 1}));
}

TEST_P(EvictionPolicyContract, ASequenceThatIsReleasedFromItsTail) {
  create(6);
  const std::vector<Handle> all = published(6);
  // Two releases of one holder are one run: tables release a long sequence in pieces.
  release_all(std::vector{all[5], all[4], all[3], all[2]});
  release_all(std::vector{all[1], all[0]});
  EXPECT_EQ(drained(), is(EvictionPolicy::head_first) ? (std::vector{0, 1, 2, 3, 4, 5})
                                                      : (std::vector{5, 4, 3, 2, 1, 0}));
}

TEST_P(EvictionPolicyContract, TheBlocksOfATicketAreARun) {
  create(4);
  const std::vector<Handle> all = published(4);
  const Ticket ticket = manager_->open_ticket().value();
  release_all(std::vector{all[3]});
  for (const std::size_t i : {2U, 1U, 0U}) {
    ASSERT_OK(manager_->release_after(ticket, holder_, std::span(&all[i].id, 1),
                                      std::span(&all[i].generation, 1)));
  }
  EXPECT_EQ(manager_->stats().evictable, 1);
  ASSERT_OK(manager_->retire(ticket));
  EXPECT_EQ(drained(),
            is(EvictionPolicy::head_first) ? (std::vector{3, 0, 1, 2}) : (std::vector{3, 2, 1, 0}));
}

/// Restoring a block that nobody held changes nothing about the evictable blocks.
TEST_P(EvictionPolicyContract, ABlockThatComesBackIntoServiceEndsNoRun) {
  create(3);
  const std::vector<Handle> all = published(3);
  release(all[2]);
  ASSERT_OK(manager_->set_content(all[2].id, all[2].generation, BlockContent::unwritten));
  ASSERT_OK(manager_->quarantine(all[2].id).status());
  release(all[1]);
  ASSERT_OK(manager_->restore(all[2].id));
  release(all[0]);
  ASSERT_OK(manager_->quarantine(all[2].id).status());  // only the others are drained
  EXPECT_EQ(drained(), is(EvictionPolicy::head_first) ? (std::vector{0, 1}) : (std::vector{1, 0}));
}

TEST_P(EvictionPolicyContract, AUseCountsAsThePolicySays) {
  create(4);
  const std::vector<Handle> all = published(4);
  for (const Handle& handle : all) {
    release(handle);
    ASSERT_OK(retain(handle));
    release(handle);
  }
  for (const std::size_t i : {1U, 1U, 0U}) {
    ASSERT_OK(retain(all[i]));
    release(all[i]);
  }
  if (is(EvictionPolicy::fifo)) {
    EXPECT_EQ(drained(), (std::vector{0, 1, 2, 3}));
  } else if (is(EvictionPolicy::lfu)) {
    EXPECT_EQ(drained(), (std::vector{2, 3, 0, 1}));
  } else {
    EXPECT_EQ(drained(), (std::vector{2, 3, 1, 0}));
  }
}

// A retain of a block that another still holds is a use too.
TEST_P(EvictionPolicyContract, ASharedUseCounts) {
  create(2);
  const std::vector<Handle> all = published(2);
  for (int uses = 0; uses < 3; ++uses) {
    ASSERT_OK(retain(all[0]));
    release(all[0]);
  }
  release(all[0]);
  ASSERT_OK(retain(all[0]));
  release(all[0]);
  release(all[1]);
  // With head_first the last two releases are one run.
  const bool goes_last = is(EvictionPolicy::lfu) || is(EvictionPolicy::head_first);
  EXPECT_EQ(drained(), goes_last ? (std::vector{1, 0}) : (std::vector{0, 1}));
}

TEST_P(EvictionPolicyContract, AnEvictedBlockIsForgotten) {
  create(2);
  std::vector<Handle> all = published(2);
  for (const Handle& handle : all) release(handle);
  for (int uses = 0; uses < 5; ++uses) {
    ASSERT_OK(retain(all[0]));
    release(all[0]);
  }
  EXPECT_EQ(take().id.value, is(EvictionPolicy::fifo) ? 0 : 1);
  const Handle last = take();
  publish(last);
  release(last);
  ASSERT_OK(retain(last));
  release(last);
  EXPECT_EQ(drained(), (std::vector{last.id.value}));
}

TEST_P(EvictionPolicyContract, UnpublishedBlocksLeaveTheOrder) {
  create(4);
  const std::vector<Handle> all = published(4);
  for (const Handle& handle : all) release(handle);
  ASSERT_OK(manager_->set_content(all[1].id, all[1].generation, BlockContent::unwritten));
  ASSERT_OK(retain(all[2]));
  ASSERT_OK(manager_->set_content(all[2].id, all[2].generation, BlockContent::failed));
  ASSERT_OK(manager_->quarantine(all[3].id));
  EXPECT_EQ(manager_->stats().evictable, 1);
  EXPECT_OK(manager_->check_invariants());
  release(all[2]);
  EXPECT_EQ(take().id.value, 2);
  EXPECT_EQ(take().id.value, 1);
  EXPECT_EQ(drained(), (std::vector{0}));
  ASSERT_OK(manager_->restore(all[3].id));
}

TEST_P(EvictionPolicyContract, ReferencedAndFencedBlocksAreNeverEvicted) {
  create(5);
  const std::vector<Handle> all = published(5);
  release_all(all);
  ASSERT_OK(retain(all[0]));  // referenced
  ASSERT_OK(retain(all[3]));
  const Ticket ticket = manager_->open_ticket().value();
  ASSERT_OK(manager_->release_after(ticket, holder_, std::span(&all[3].id, 1),
                                    std::span(&all[3].generation, 1)));  // fenced
  std::vector<int> evicted = drained();
  std::ranges::sort(evicted);
  EXPECT_EQ(evicted, (std::vector{1, 2, 4}));
  BlockId id;
  Generation generation;
  const Status refused =
      manager_->allocate(holder_, std::span(&id, 1), std::span(&generation, 1)).status();
  EXPECT_EQ(refused.code, StatusCode::exhausted);
  EXPECT_EQ(refused.resource, GetParam().has_pages ? Resource::page : Resource::block);
  EXPECT_EQ(manager_->state(all[0].id), BlockState::referenced);
  EXPECT_EQ(manager_->state(all[3].id), BlockState::fenced);
  ASSERT_OK(manager_->retire(ticket));
  EXPECT_EQ(drained(), (std::vector{3}));
}

TEST_P(EvictionPolicyContract, ARefusedReleaseChangesNothing) {
  test::ViolationRecorder recorder;
  create(4);
  const std::vector<Handle> all = published(4);
  release(all[2]);
  const auto before = test::snapshot_of(*manager_);
  const std::vector<BlockId> ids{all[0].id, all[1].id, all[2].id};
  const std::vector<Generation> generations{all[0].generation, all[1].generation,
                                            all[2].generation};
  EXPECT_FAILS(manager_->release(holder_, ids, generations), double_release, block);
  const std::vector<BlockId> twice{all[0].id, all[0].id};
  EXPECT_FAILS(manager_->release(holder_, twice, std::span(generations).first(2)), double_release,
               block);
  EXPECT_TRUE(before == test::snapshot_of(*manager_));
  for (const std::size_t i : {3U, 0U, 1U}) {
    release(all[i]);
    ASSERT_OK(retain(all[i]));
    release(all[i]);
  }
  EXPECT_EQ(drained(), (std::vector{2, 3, 0, 1}));
}

// Holds, shares, fences and publishes blocks at random. Returns the ids handed out.
class RandomCalls {
 public:
  RandomCalls(BlockManager& manager, HolderId holder, std::uint64_t seed)
      : manager_(manager), holder_(holder), random_(seed) {}

  std::vector<std::int32_t> play(int calls) {
    for (int call = 0; call < calls && !testing::Test::HasFatalFailure(); ++call) play_one();
    return handed_out_;
  }

 private:
  void play_one() {
    switch (random_() % 8) {
      case 0:
      case 1: take(1 + random_() % 4); break;
      case 2:
        if (!cached_.empty()) retain(cached_[random_() % cached_.size()]);
        break;
      case 3: static_cast<void>(manager_.advance_clock(manager_.clock_time() + 1)); break;
      case 4:
        if (const auto ticket = manager_.open_ticket()) tickets_.push_back(*ticket);
        break;
      case 5: retire(); break;
      default: release(); break;
    }
  }
  void take(std::size_t count) {
    std::vector<BlockId> ids(count);
    std::vector<Generation> generations(count);
    const auto evictable = manager_.stats().evictable;
    if (!manager_.allocate(holder_, ids, generations)) return;
    ASSERT_EQ(static_cast<std::int64_t>(manager_.evicted().size()),
              evictable - manager_.stats().evictable);
    for (const BlockId id : manager_.evicted()) {
      // Only a block that nobody held or fenced may go.
      ASSERT_EQ(references_[id], 0) << "block " << id.value;
      std::erase_if(cached_, [id](const Handle& handle) { return handle.id == id; });
    }
    for (std::size_t i = 0; i < count; ++i) {
      handed_out_.push_back(ids[i].value);
      hold({ids[i], generations[i]});
      if (random_() % 4 == 0) continue;
      ASSERT_OK(manager_.set_content(ids[i], generations[i], BlockContent::published));
      cached_.push_back({ids[i], generations[i]});
      static_cast<void>(manager_.set_retention(
          ids[i], generations[i],
          {static_cast<std::int32_t>(random_() % 101),
           manager_.clock_time() + static_cast<std::int64_t>(random_() % 30)}));
    }
  }
  void retain(const Handle& handle) {
    if (manager_.retain(holder_, std::span(&handle.id, 1), std::span(&handle.generation, 1))) {
      hold(handle);
    }
  }
  void hold(const Handle& handle) {
    ++references_[handle.id];
    held_.push_back(handle);
  }
  void release() {
    if (held_.empty()) return;
    std::swap(held_[random_() % held_.size()], held_.back());
    const Handle handle = held_.back();
    held_.pop_back();
    const std::span ids(&handle.id, 1);
    const std::span generations(&handle.generation, 1);
    if (!tickets_.empty() && random_() % 3 == 0) {
      const Ticket ticket = tickets_[random_() % tickets_.size()];
      ASSERT_OK(manager_.release_after(ticket, holder_, ids, generations));
      fenced_[ticket].push_back(handle.id);
    } else {
      ASSERT_OK(manager_.release(holder_, ids, generations));
      --references_[handle.id];
    }
  }
  void retire() {
    if (tickets_.empty()) return;
    const Ticket ticket = tickets_.front();
    tickets_.erase(tickets_.begin());
    ASSERT_OK(manager_.retire(ticket));
    for (const BlockId id : fenced_[ticket]) --references_[id];
    fenced_.erase(ticket);
  }

  BlockManager& manager_;
  HolderId holder_;
  std::mt19937_64 random_;
  std::map<BlockId, int> references_;  // live and fenced
  std::vector<Handle> held_;
  std::vector<Handle> cached_;
  std::vector<Ticket> tickets_;
  std::map<Ticket, std::vector<BlockId>> fenced_;
  std::vector<std::int32_t> handed_out_;
};

TEST_P(EvictionPolicyContract, RandomCallsEvictNothingThatIsHeldAndAreRepeatable) {
  const std::uint64_t seed = test::number_from_environment("KVARENA_SEED", 1);
  SCOPED_TRACE(testing::Message() << "KVARENA_SEED=" << seed);
  std::vector<std::int32_t> first;
  for (int time = 0; time < 2; ++time) {
    create(60);
    const auto ids = RandomCalls(*manager_, holder_, seed).play(20'000);
    ASSERT_OK(manager_->check_invariants());
    EXPECT_GT(manager_->stats().evictions, 1000U);
    if (time == 0) first = ids;
    EXPECT_EQ(ids, first);
  }
}

TEST_P(EvictionPolicyContract, NoCallAllocates) {
  create(64);
  const std::vector<Handle> all = published(64);
  const test::HeapCounter counter;
  bool ok = true;
  for (int round = 0; round < 20; ++round) {
    for (const Handle& handle : all) {
      ok = ok &&
           manager_->release(holder_, std::span(&handle.id, 1), std::span(&handle.generation, 1))
               .is_ok();
    }
    static_cast<void>(manager_->set_retention(all[3].id, all[3].generation, {7, round + 1}));
    for (const Handle& handle : all) ok = ok && retain(handle).is_ok();
    static_cast<void>(manager_->advance_clock(round));
  }
  EXPECT_TRUE(ok);
  EXPECT_EQ(counter.count(), 0);
  release_all(all);
}

TEST_P(EvictionPolicyContract, OnlyPrioritiesHaveRetentionsAndAClock) {
  create(1);
  const std::vector<Handle> all = published(1);
  const Status set = manager_->set_retention(all[0].id, all[0].generation, {50, 10});
  const Status advanced = manager_->advance_clock(5);
  if (is(EvictionPolicy::priority)) {
    EXPECT_OK(set);
    EXPECT_OK(advanced);
    EXPECT_EQ(manager_->retention(all[0].id), (RetentionHint{50, 10}));
    EXPECT_EQ(manager_->clock_time(), 5);
  } else {
    const auto policy = static_cast<std::uint64_t>(GetParam().policy);
    EXPECT_EQ(set, unsupported_option(Option::eviction, policy));
    EXPECT_EQ(advanced, unsupported_option(Option::eviction, policy));
    EXPECT_EQ(manager_->retention(all[0].id), RetentionHint{});
    EXPECT_EQ(manager_->clock_time(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EvictionPolicyContract, testing::ValuesIn(test::policy_cases()),
                         [](const auto& seen) { return test::test_name_of(seen.param); });

TEST(EvictionPolicyOption, OtherValuesAreRefused) {
  const auto made = BlockManager::create(
      {.num_blocks = 4, .eviction = static_cast<EvictionPolicy>(kEvictionPolicies.size())});
  EXPECT_EQ(made.status(), invalid_option(Option::eviction, 5, 0, 4));
}

}  // namespace
}  // namespace kvarena
