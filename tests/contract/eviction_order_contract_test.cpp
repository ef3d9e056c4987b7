// One suite for every eviction policy: what each call does to the order, beside a naive order that
// searches all blocks for the next one.

#include "allocator/eviction_order.hpp"

#include "support/environment.hpp"
#include "support/heap_counter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

constexpr std::int64_t kBlocks = 40;

BlockId block(std::int64_t number) { return BlockId(static_cast<std::int32_t>(number)); }

// Each block with its uses and the times of its entry and its latest use.
class NaiveOrder {
 public:
  explicit NaiveOrder(EvictionPolicy policy) : policy_(policy) {}

  void insert(BlockId id) { blocks_[id] = {1, ++now_, now_}; }
  void touch(BlockId id) {
    ++blocks_.at(id).uses;
    blocks_.at(id).used = ++now_;
  }
  void remove(BlockId id) { blocks_.erase(id); }
  bool contains(BlockId id) const { return blocks_.contains(id); }
  std::int64_t size() const { return static_cast<std::int64_t>(blocks_.size()); }
  BlockId next() const {
    const auto least = std::ranges::min_element(
        blocks_, {}, [this](const auto& entry) { return key_of(entry.second); });
    return least == blocks_.end() ? kNoBlock : least->first;
  }

 private:
  struct Life {
    std::int64_t uses;
    std::int64_t entered;
    std::int64_t used;
  };
  std::pair<std::int64_t, std::int64_t> key_of(const Life& life) const {
    if (policy_ == EvictionPolicy::fifo) return {0, life.entered};
    return {policy_ == EvictionPolicy::lfu ? life.uses : 0, life.used};
  }

  EvictionPolicy policy_;
  std::int64_t now_ = 0;
  std::map<BlockId, Life> blocks_;
};

class EvictionOrderContract : public testing::TestWithParam<EvictionPolicy> {
 protected:
  // What the order evicts from now on. It is empty then.
  std::vector<int> drained() {
    std::vector<int> ids;
    while (order_.next() != kNoBlock) {
      ids.push_back(order_.next().value);
      order_.remove(order_.next());
      EXPECT_TRUE(order_.is_whole());
    }
    EXPECT_EQ(order_.size(), 0);
    return ids;
  }
  bool is(EvictionPolicy policy) const { return GetParam() == policy; }

  EvictionOrder order_{GetParam(), kBlocks};
};

TEST_P(EvictionOrderContract, BeginsEmpty) {
  EXPECT_EQ(order_.policy(), GetParam());
  EXPECT_EQ(order_.size(), 0);
  EXPECT_EQ(order_.next(), kNoBlock);
  EXPECT_TRUE(order_.is_whole());
}

TEST_P(EvictionOrderContract, UntouchedBlocksLeaveInTheOrderTheyCame) {
  for (const int id : {7, 0, 39, 3}) order_.insert(block(id));
  EXPECT_EQ(order_.size(), 4);
  EXPECT_EQ(drained(), (std::vector{7, 0, 39, 3}));
}

TEST_P(EvictionOrderContract, NextStaysUntilItIsRemoved) {
  order_.insert(block(5));
  EXPECT_EQ(order_.next(), block(5));
  EXPECT_EQ(order_.next(), block(5));
  EXPECT_EQ(order_.size(), 1);
}

TEST_P(EvictionOrderContract, AUseCountsAsThePolicySays) {
  for (const int id : {1, 2, 3}) order_.insert(block(id));
  order_.touch(block(2));
  order_.touch(block(2));
  order_.touch(block(1));
  order_.insert(block(4));
  if (is(EvictionPolicy::fifo)) {
    EXPECT_EQ(drained(), (std::vector{1, 2, 3, 4}));
  } else if (is(EvictionPolicy::lfu)) {
    EXPECT_EQ(drained(), (std::vector{3, 4, 1, 2}));
  } else {
    EXPECT_EQ(drained(), (std::vector{3, 2, 1, 4}));
  }
}

TEST_P(EvictionOrderContract, TheFirstTheMiddleAndTheLastCanBeRemoved) {
  for (const int id : {1, 2, 3, 4, 5}) order_.insert(block(id));
  for (const int id : {3, 1, 5}) order_.remove(block(id));
  EXPECT_EQ(order_.size(), 2);
  EXPECT_EQ(drained(), (std::vector{2, 4}));
}

TEST_P(EvictionOrderContract, ABlockThatComesBackIsNew) {
  for (const int id : {1, 2}) order_.insert(block(id));
  for (int uses = 0; uses < 5; ++uses) order_.touch(block(1));
  order_.remove(block(1));
  order_.insert(block(1));
  order_.touch(block(2));  // once more than block 1
  EXPECT_EQ(drained(), is(EvictionPolicy::fifo) ? (std::vector{2, 1}) : (std::vector{1, 2}));
}

// Every block with a count of its own needs the most lists; then all of them go and come again.
TEST_P(EvictionOrderContract, AllBlocksMayBeUsedDifferentlyOften) {
  for (int round = 0; round < 3; ++round) {
    std::vector<int> expected;
    for (std::int64_t id = 0; id < kBlocks; ++id) {
      order_.insert(block(id));
      for (std::int64_t uses = 0; uses < id; ++uses) order_.touch(block(id));
      ASSERT_TRUE(order_.is_whole());
      expected.push_back(static_cast<int>(id));
    }
    EXPECT_EQ(order_.size(), kBlocks);
    EXPECT_EQ(drained(), expected);
  }
}

TEST_P(EvictionOrderContract, RandomCallsAgreeWithANaiveOrder) {
  const std::uint64_t seed = test::number_from_environment("KVARENA_SEED", 1);
  SCOPED_TRACE(testing::Message() << "KVARENA_SEED=" << seed);
  std::mt19937_64 random(seed);
  const auto rounds = test::number_from_environment("KVARENA_TEST_ROUNDS", 1);
  for (std::uint64_t game = 0; game < 20 * rounds; ++game) {
    EvictionOrder order(GetParam(), kBlocks);
    NaiveOrder naive(GetParam());
    const std::uint64_t remove_share = 1 + random() % 30;  // percent: full and empty orders
    for (int step = 0; step < 2000; ++step) {
      const BlockId id = block(static_cast<std::int64_t>(random() % kBlocks));
      const bool removes = random() % 100 < remove_share;
      if (!naive.contains(id)) {
        order.insert(id);
        naive.insert(id);
      } else if (removes) {
        const BlockId victim = random() % 2 == 0 ? id : naive.next();
        order.remove(victim);
        naive.remove(victim);
      } else {
        order.touch(id);
        naive.touch(id);
      }
      ASSERT_EQ(order.next(), naive.next()) << "game " << game << ", step " << step;
      ASSERT_EQ(order.size(), naive.size());
      ASSERT_TRUE(order.is_whole());
    }
  }
}

TEST_P(EvictionOrderContract, NoCallAllocates) {
  const test::HeapCounter counter;
  for (std::int64_t id = 0; id < kBlocks; ++id) order_.insert(block(id));
  for (std::int64_t use = 0; use < 1000; ++use) order_.touch(block(use * use % kBlocks));
  while (order_.next() != kNoBlock) order_.remove(order_.next());
  EXPECT_EQ(counter.count(), 0);
}

TEST_P(EvictionOrderContract, TheNameLeadsBack) {
  EXPECT_EQ(eviction_policy_of(name_of(GetParam())), GetParam());
  EXPECT_EQ(begins_at_tail(GetParam()), is(EvictionPolicy::tail_first));
}

TEST(EvictionPolicyNames, OtherNamesAreNone) {
  for (const char* name : {"", "lru", "LFU", "tail_first", "fifo "}) {
    EXPECT_EQ(eviction_policy_of(name), std::nullopt) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EvictionOrderContract, testing::ValuesIn(kEvictionPolicies),
                         [](const auto& seen) {
                           std::string name(name_of(seen.param));
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvarena
