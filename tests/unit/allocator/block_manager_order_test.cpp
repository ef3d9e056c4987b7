// The documented order of ids: what is handed out next never depends on anything but the calls.

#include "block_manager_fixture.hpp"

namespace kvarena::test {
namespace {

using Numbers = std::vector<std::int32_t>;

class BlockOrderTest : public BlockManagerTest {};

TEST_F(BlockOrderTest, FreshPoolHandsOutAscendingIds) {
  create(5);
  EXPECT_EQ(take(holder(), 5).raw(), (Numbers{0, 1, 2, 3, 4}));
}

TEST_F(BlockOrderTest, LastReleasedComesFirst) {
  create(4);
  const HolderId h = holder();
  const Handles all = take(h, 4);
  ASSERT_OK(release(h, all.pick({1})));
  ASSERT_OK(release(h, all.pick({3})));
  ASSERT_OK(release(h, all.pick({0})));
  EXPECT_EQ(take(h, 3).raw(), (Numbers{0, 3, 1}));
}

TEST_F(BlockOrderTest, OneReleaseCallFreesInTheOrderGiven) {
  create(4);
  const HolderId h = holder();
  const Handles all = take(h, 4);
  ASSERT_OK(release(h, all.pick({2, 0, 3})));
  EXPECT_EQ(take(h, 3).raw(), (Numbers{3, 0, 2}));
}

TEST_F(BlockOrderTest, ReleasedBlocksComeBeforeUntouchedOnes) {
  create(6);
  const HolderId h = holder();
  const Handles first = take(h, 3);
  ASSERT_OK(release(h, first.pick({1})));
  EXPECT_EQ(take(h, 2).raw(), (Numbers{1, 3}));
}

TEST_F(BlockOrderTest, EvictableBlocksComeOnlyWhenNoneIsFreeOldestFirst) {
  create(4);
  const HolderId h = holder();
  const Handles all = take(h, 4);
  for (const std::size_t i : {2U, 0U, 1U}) {
    ASSERT_OK(manager().set_content(all.ids[i], all.generations[i], BlockContent::published));
  }
  ASSERT_OK(release(h, all.pick({1, 2})));  // evictable: 1, then 2
  ASSERT_OK(release(h, all.pick({3})));     // free
  ASSERT_OK(release(h, all.pick({0})));     // evictable after 2
  Handles got{std::vector<BlockId>(3), std::vector<Generation>(3)};
  const Result<std::int64_t> evicted = manager().allocate(h, got.ids, got.generations);
  ASSERT_OK(evicted);
  EXPECT_EQ(*evicted, 2);
  EXPECT_EQ(got.raw(), (Numbers{3, 1, 2}));
  EXPECT_EQ(manager().stats().evictions, 2U);
  EXPECT_EQ(manager().state(BlockId(0)), BlockState::evictable);
}

TEST_F(BlockOrderTest, ARevivedBlockGoesToTheEndOfTheEvictableOrder) {
  create(2);
  const HolderId h = holder();
  const Handles both = take(h, 2);
  for (const std::size_t i : {0U, 1U}) {
    ASSERT_OK(manager().set_content(both.ids[i], both.generations[i], BlockContent::published));
  }
  ASSERT_OK(release(h, both));
  ASSERT_OK(retain(h, both.pick({0})));
  ASSERT_OK(release(h, both.pick({0})));
  EXPECT_EQ(take(h, 2).raw(), (Numbers{1, 0}));
}

TEST_F(BlockOrderTest, ACallForManyHandsOutHolderByHolder) {
  create(6);
  const HolderId a = holder();
  const HolderId b = holder();
  const std::vector<HolderDemand> demands{{b, 2}, {a, 3}};
  Handles got{std::vector<BlockId>(5), std::vector<Generation>(5)};
  ASSERT_OK(manager().allocate_each(demands, got.ids, got.generations));
  EXPECT_EQ(got.raw(), (Numbers{0, 1, 2, 3, 4}));
  ASSERT_OK(release(b, got.pick({0, 1})));
  ASSERT_OK(release(a, got.pick({2, 3, 4})));
  ASSERT_OK(manager().unregister_holder(a));
  ASSERT_OK(manager().unregister_holder(b));
}

TEST_F(BlockOrderTest, ATicketFreesInTheOrderOfRelease) {
  create(5);
  const HolderId h = holder();
  const Handles all = take(h, 5);
  const Ticket one = ticket();
  const Ticket two = ticket();
  ASSERT_OK(release_after(two, h, all.pick({4})));
  ASSERT_OK(release_after(one, h, all.pick({2, 0})));
  ASSERT_OK(release_after(two, h, all.pick({1})));
  ASSERT_OK(manager().retire(two));
  ASSERT_OK(manager().retire(one));
  EXPECT_EQ(take(h, 4).raw(), (Numbers{0, 2, 1, 4}));
}

TEST_F(BlockOrderTest, ARefusedReleaseLeavesTheOrderAsItWas) {
  create(6);
  ViolationRecorder recorder;
  const HolderId h = holder();
  const Handles all = take(h, 6);
  ASSERT_OK(release(h, all.pick({5, 2})));
  EXPECT_REFUSED(release(h, all.pick({0, 1, 3, 5})), double_release, block);
  EXPECT_EQ(take(h, 2).raw(), (Numbers{2, 5}));
}

TEST_F(BlockOrderTest, ARefusedReleaseLeavesTheEvictableOrderAsItWas) {
  create(4);
  ViolationRecorder recorder;
  const HolderId h = holder();
  const Handles all = take(h, 4);
  for (const std::size_t i : {0U, 1U, 2U, 3U}) {
    ASSERT_OK(manager().set_content(all.ids[i], all.generations[i], BlockContent::published));
  }
  ASSERT_OK(release(h, all.pick({2, 1})));
  EXPECT_REFUSED(release(h, all.pick({0, 3, 1})), double_release, block);
  ASSERT_OK(release(h, all.pick({3, 0})));
  EXPECT_EQ(take(h, 4).raw(), (Numbers{2, 1, 3, 0}));
}

TEST_F(BlockOrderTest, RestoredBlocksAreHandedOutNext) {
  create(4);
  ASSERT_OK(manager().quarantine(BlockId(2)));
  ASSERT_OK(manager().restore(BlockId(2)));
  EXPECT_EQ(take(holder(), 2).raw(), (Numbers{2, 0}));
}

}  // namespace
}  // namespace kvarena::test
