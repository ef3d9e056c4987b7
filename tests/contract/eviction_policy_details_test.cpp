// What single policies promise beyond the contract of all: retentions and their clock, blocks that
// are passed over, and a prefix cache on the blocks of a manager that hits and evicts exactly as
// `kvarena replay --pure-cache` does.

#include "eviction_policy_contract.hpp"
#include "replay/pure_cache.hpp"
#include "support/environment.hpp"

#include <array>
#include <map>
#include <random>
#include <utility>

namespace kvarena {
namespace {

using test::Handle;

class RetentionTest : public test::EvictionPolicyTest {};

TEST_P(RetentionTest, TheLowestPriorityGoesFirstAndThenTheLeastRecentlyUsed) {
  create(6);
  const std::vector<Handle> all = published(6);
  const std::vector<std::int32_t> priorities{40, 35, 0, 100, 40, 34};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i != 1) {
      ASSERT_OK(manager_->set_retention(all[i].id, all[i].generation, {priorities[i]}));
    }
    release(all[i]);
  }
  EXPECT_EQ(drained(), (std::vector{2, 5, 1, 0, 4, 3}));
}

TEST_P(RetentionTest, APriorityEndsAtItsTime) {
  create(5);
  const std::vector<Handle> all = published(5);
  const std::vector<RetentionHint> hints{
      {90, 1000}, {90, 70}, {0, 1001}, {90, 70}, {35, RetentionHint::kNever}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_OK(manager_->set_retention(all[i].id, all[i].generation, hints[i]));
    release(all[i]);
  }
  ASSERT_OK(manager_->advance_clock(1000));  // 1, 3, 0: by their ends, and behind 4
  EXPECT_EQ(manager_->retention(all[0].id), RetentionHint{});
  EXPECT_EQ(manager_->retention(all[2].id), (RetentionHint{0, 1001}));
  EXPECT_EQ(drained(), (std::vector{2, 4, 1, 3, 0}));
}

TEST_P(RetentionTest, ARetentionEndsWhileTheBlockIsHeld) {
  create(3);
  const std::vector<Handle> all = published(3);
  ASSERT_OK(manager_->set_retention(all[0].id, all[0].generation, {100, 10}));
  release(all[1]);
  ASSERT_OK(manager_->advance_clock(10));
  release(all[0]);
  release(all[2]);
  EXPECT_EQ(drained(), (std::vector{1, 0, 2}));
}

TEST_P(RetentionTest, ABlockThatIsEvictedLosesItsRetention) {
  create(2);
  std::vector<Handle> all = published(2);
  ASSERT_OK(manager_->set_retention(all[0].id, all[0].generation, {0, 50}));
  for (const Handle& handle : all) release(handle);
  const Handle again = take();
  EXPECT_EQ(again.id.value, 0);
  publish(again);
  release(again);
  ASSERT_OK(manager_->advance_clock(60));
  EXPECT_EQ(drained(), (std::vector{1, 0}));
}

// Every digit of the wheel, and advances that pass none, some and all of the ends.
TEST_P(RetentionTest, EndsOfAllSizesComeInOrder) {
  constexpr std::size_t kBlocks = 62;
  create(kBlocks);
  const std::vector<Handle> all = published(kBlocks);
  release_all(all);
  std::mt19937_64 random(3);
  std::vector<std::size_t> order(kBlocks);
  for (std::size_t i = 0; i < kBlocks; ++i) order[i] = i;
  std::ranges::shuffle(order, random);
  std::vector<std::pair<std::int64_t, int>> expected;
  for (const std::size_t i : order) {
    const std::int64_t end = (std::int64_t{1} << i) + static_cast<std::int64_t>(i % 3);
    ASSERT_OK(manager_->set_retention(all[i].id, all[i].generation, {90, end}));
    expected.emplace_back(end, all[i].id.value);
  }
  std::ranges::stable_sort(expected, {}, &std::pair<std::int64_t, int>::first);
  std::int64_t now = 0;
  while (now < std::int64_t{1} << 61) {
    now += 1 + now / static_cast<std::int64_t>(1 + random() % 5);
    ASSERT_OK(manager_->advance_clock(now));
    ASSERT_OK(manager_->check_invariants());
    for (const auto& [end, id] : expected) {
      ASSERT_EQ(manager_->retention(BlockId(id)).priority, end <= now ? 35 : 90) << now;
    }
  }
  ASSERT_OK(manager_->advance_clock(RetentionHint::kNever - 1));
  std::vector<int> ids;
  for (const auto& [end, id] : expected) ids.push_back(id);
  EXPECT_EQ(drained(), ids);
}

INSTANTIATE_TEST_SUITE_P(Policies, RetentionTest,
                         testing::Values(EvictionPolicy::priority,
                                         test::PolicyCase(EvictionPolicy::priority, true)),
                         [](const auto& seen) { return test::test_name_of(seen.param); });

class EntryTest : public test::EvictionPolicyTest {};

// A block whose turn comes while it is held is passed over, and is next when it comes back.
TEST_P(EntryTest, ABlockThatWasPassedOverIsNext) {
  create(5);
  const std::vector<Handle> all = published(5);
  for (const Handle& handle : all) release(handle);
  for (const std::size_t i : {0U, 1U, 3U}) ASSERT_OK(retain(all[i]));
  EXPECT_EQ(take().id.value, 2);  // 0 and 1 are passed over
  release(all[3]);                // its turn has not come
  release(all[1]);
  release(all[0]);
  EXPECT_EQ(drained(), (std::vector{1, 0, 3, 4}));
}

INSTANTIATE_TEST_SUITE_P(Policies, EntryTest,
                         testing::Values(EvictionPolicy::fifo,
                                         test::PolicyCase(EvictionPolicy::fifo, true)),
                         [](const auto& seen) { return test::test_name_of(seen.param); });

// Uses or inserts ids one by one, as PureCache does, with blocks of a manager.
class ManagerCache {
 public:
  ManagerCache(EvictionPolicy policy, std::int64_t capacity)
      : manager_(BlockManager::create({.num_blocks = capacity, .eviction = policy}).value()),
        holders_{manager_.register_holder({.purpose = "even"}).value(),
                 manager_.register_holder({.purpose = "odd"}).value()},
        ids_(static_cast<std::size_t>(capacity)) {}

  std::int64_t match(std::span<const std::int64_t> ids) const {
    return std::ranges::find_if(ids, [this](std::int64_t id) { return !blocks_.contains(id); }) -
           ids.begin();
  }
  void touch(std::span<const std::int64_t> ids) {
    const bool from_tail = manager_.eviction() == EvictionPolicy::tail_first;
    for (std::size_t i = 0; i < ids.size(); ++i) touch(ids[from_tail ? ids.size() - 1 - i : i]);
  }
  std::int64_t evictions() const { return static_cast<std::int64_t>(manager_.stats().evictions); }
  Status check() const { return manager_.check_invariants(); }

 private:
  void touch(std::int64_t id) {
    const auto found = blocks_.find(id);
    Handle handle = found == blocks_.end() ? Handle{} : found->second;
    // No two blocks are of one run: the caller has chosen the direction.
    const HolderId holder = holders_[++turn_ % 2];
    const std::span ids(&handle.id, 1);
    const std::span generations(&handle.generation, 1);
    if (found != blocks_.end()) {
      EXPECT_OK(manager_.retain(holder, ids, generations));
    } else {
      EXPECT_OK(manager_.allocate(holder, ids, generations));
      for (const BlockId evicted : manager_.evicted()) {
        blocks_.erase(ids_[static_cast<std::size_t>(evicted.value)]);
      }
      EXPECT_OK(manager_.set_content(handle.id, handle.generation, BlockContent::published));
      blocks_[id] = handle;
      ids_[static_cast<std::size_t>(handle.id.value)] = id;
    }
    EXPECT_OK(manager_.release(holder, ids, generations));
  }

  BlockManager manager_;
  std::array<HolderId, 2> holders_;
  std::size_t turn_ = 0;
  std::map<std::int64_t, Handle> blocks_;
  std::vector<std::int64_t> ids_;  // by block
};

class PrefixCacheOnAManager : public testing::TestWithParam<EvictionPolicy> {};

TEST_P(PrefixCacheOnAManager, HitsAndEvictsAsTheCacheAloneDoes) {
  const std::uint64_t seed = test::number_from_environment("KVARENA_SEED", 1);
  SCOPED_TRACE(testing::Message() << "KVARENA_SEED=" << seed);
  std::mt19937_64 random(seed);
  for (const std::int64_t capacity : {1, 2, 7, 40, 200}) {
    replay::PureCache alone(GetParam(), capacity);
    ManagerCache on_manager(GetParam(), capacity);
    for (int request = 0; request < 400; ++request) {
      // A path in a tree, whose small branches are more likely.
      std::vector<std::int64_t> ids;
      std::int64_t id = 0;
      for (std::uint64_t left = 1 + random() % 12; left > 0; --left) {
        id = id * 4 + 1 + static_cast<std::int64_t>(std::min(random() % 4, random() % 4));
        ids.push_back(id);
      }
      ASSERT_EQ(on_manager.match(ids), alone.match(ids)) << capacity << ", request " << request;
      alone.touch(ids);
      on_manager.touch(ids);
      ASSERT_EQ(on_manager.evictions(), alone.evictions()) << capacity << ", request " << request;
    }
    EXPECT_OK(on_manager.check());
    EXPECT_GT(alone.evictions(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, PrefixCacheOnAManager, testing::ValuesIn(kEvictionPolicies),
                         [](const auto& seen) { return test::test_name_of(seen.param); });

}  // namespace
}  // namespace kvarena
