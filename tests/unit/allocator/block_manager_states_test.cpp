// States of a block and the ways between them: references, tickets, caching, quarantine, promises.

#include "block_manager_fixture.hpp"

namespace kvarena::test {
namespace {

class BlockStatesTest : public BlockManagerTest {};

TEST_F(BlockStatesTest, ABlockIsFreeAgainWhenItsLastReferenceGoes) {
  create(2);
  const HolderId a = holder();
  const HolderId b = holder();
  const Handles one = take(a, 1);
  ASSERT_OK(retain(b, one));
  EXPECT_EQ(manager().reference_count(one.ids[0]), 2U);
  ASSERT_OK(release(a, one));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::referenced);
  ASSERT_OK(release(b, one));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::free);
  EXPECT_EQ(manager().reference_count(one.ids[0]), 0U);
}

TEST_F(BlockStatesTest, AFencedBlockComesBackOnlyWithItsTicket) {
  create(2);
  const HolderId h = holder();
  const Handles both = take(h, 2);
  const Ticket t = ticket();
  ASSERT_OK(release_after(t, h, both.pick({0})));
  EXPECT_EQ(manager().state(both.ids[0]), BlockState::fenced);
  EXPECT_EQ(manager().reference_count(both.ids[0]), 0U);
  EXPECT_EQ(manager().available_now(), 0);
  EXPECT_EQ(manager().available_after(t), 1);
  EXPECT_EQ(manager().holder(h)->references, 1) << "fenced references are the ticket's";
  EXPECT_FAILS(try_take(h, 1), exhausted, block);
  ASSERT_OK(manager().retire(t));
  EXPECT_EQ(manager().state(both.ids[0]), BlockState::free);
  EXPECT_EQ(manager().available_now(), 1);
}

TEST_F(BlockStatesTest, SeveralTicketsMayHoldOneBlock) {
  create({.num_blocks = 1, .max_fence_entries = 2});
  const HolderId a = holder();
  const HolderId b = holder();
  const Handles one = take(a, 1);
  ASSERT_OK(retain(b, one));
  const Ticket t1 = ticket();
  const Ticket t2 = ticket();
  ASSERT_OK(release_after(t2, a, one));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::referenced);
  EXPECT_EQ(manager().available_after(t2), 0) << "b still holds it";
  ASSERT_OK(release_after(t1, b, one));
  EXPECT_EQ(manager().stats().fence_entries, 2);
  EXPECT_EQ(manager().available_after(t1), 0) << "the later ticket still holds it";
  EXPECT_EQ(manager().available_after(t2), 1);
  ASSERT_OK(manager().retire(t2));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::fenced);
  ASSERT_OK(manager().retire(t1));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::free);
}

TEST_F(BlockStatesTest, ALiveReferenceOutlastsARetiredTicket) {
  create(1);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  ASSERT_OK(retain(h, one));
  const Ticket t = ticket();
  ASSERT_OK(release_after(t, h, one));
  ASSERT_OK(manager().retire(t));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::referenced);
  EXPECT_OK(release(h, one));
}

TEST_F(BlockStatesTest, ACachedBlockBecomesEvictableAndCanBeRevived) {
  create(2);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  ASSERT_OK(manager().set_content(one.ids[0], one.generations[0], BlockContent::published));
  ASSERT_OK(release(h, one));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::evictable);
  EXPECT_EQ(manager().available_now(), 2);
  EXPECT_EQ(manager().generation(one.ids[0]), one.generations[0]) << "the content is still its";
  ASSERT_OK(retain(h, one));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::referenced);
  ASSERT_OK(manager().set_content(one.ids[0], one.generations[0], BlockContent::unwritten));
  ASSERT_OK(release(h, one));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::free);
}

TEST_F(BlockStatesTest, TakingTheMarkFromAnEvictableBlockFreesIt) {
  create(1);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  ASSERT_OK(manager().set_content(one.ids[0], one.generations[0], BlockContent::published));
  ASSERT_OK(release(h, one));
  ASSERT_OK(manager().set_content(one.ids[0], one.generations[0], BlockContent::unwritten));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::free);
  EXPECT_FAILS(retain(h, one), stale_handle, block);
}

TEST_F(BlockStatesTest, AnEvictedBlocksHandleIsStale) {
  create(1);
  const HolderId h = holder();
  const Handles old = take(h, 1);
  ASSERT_OK(manager().set_content(old.ids[0], old.generations[0], BlockContent::published));
  ASSERT_OK(release(h, old));
  const Handles fresh = take(h, 1);
  EXPECT_EQ(fresh.ids[0], old.ids[0]);
  EXPECT_FAILS(retain(h, old), stale_handle, block);
  ASSERT_OK(release(h, fresh));
  EXPECT_EQ(manager().state(fresh.ids[0]), BlockState::free) << "the mark went with the eviction";
}

TEST_F(BlockStatesTest, ACachedFencedBlockCanBeRevived) {
  create(1);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  ASSERT_OK(manager().set_content(one.ids[0], one.generations[0], BlockContent::published));
  const Ticket t = ticket();
  ASSERT_OK(release_after(t, h, one));
  ASSERT_OK(retain(h, one));
  ASSERT_OK(manager().retire(t));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::referenced);
  ASSERT_OK(release(h, one));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::evictable);
}

TEST_F(BlockStatesTest, AFencedBlockThatIsNotCachedCannotBeRevived) {
  create(1);
  ViolationRecorder recorder;
  const HolderId h = holder();
  const Handles one = take(h, 1);
  ASSERT_OK(release_after(ticket(), h, one));
  EXPECT_REFUSED(retain(h, one), stale_handle, block);
}

TEST_F(BlockStatesTest, QuarantineTakesFreeAndEvictableBlocksAtOnce) {
  create(3);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  ASSERT_OK(manager().set_content(one.ids[0], one.generations[0], BlockContent::published));
  ASSERT_OK(release(h, one));
  EXPECT_TRUE(manager().quarantine(one.ids[0]).value());
  EXPECT_TRUE(manager().quarantine(BlockId(2)).value());
  EXPECT_TRUE(manager().quarantine(BlockId(2)).value()) << "it is offline now";
  EXPECT_EQ(manager().stats().offline, 2);
  EXPECT_EQ(take(h, 1).raw(), (std::vector<std::int32_t>{1}));
  EXPECT_FAILS(try_take(h, 1), exhausted, block);
}

TEST_F(BlockStatesTest, QuarantineOfAHeldBlockWaitsForItsLastReference) {
  create(1);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  EXPECT_FALSE(manager().quarantine(one.ids[0]).value());
  const Ticket t = ticket();
  ASSERT_OK(release_after(t, h, one));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::fenced);
  EXPECT_EQ(manager().available_after(t), 0) << "it will go out of service, not come back";
  ASSERT_OK(manager().retire(t));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::offline);
  ASSERT_OK(manager().restore(one.ids[0]));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::free);
}

TEST_F(BlockStatesTest, RestoreCallsOffAQuarantineThatStillWaits) {
  create(1);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  EXPECT_FALSE(manager().quarantine(one.ids[0]).value());
  ASSERT_OK(manager().restore(one.ids[0]));
  ASSERT_OK(release(h, one));
  EXPECT_EQ(manager().state(one.ids[0]), BlockState::free);
}

TEST_F(BlockStatesTest, APromiseIsKeptAgainstEverybodyElse) {
  create(6);
  const HolderId promised = holder();
  const HolderId other = holder();
  ASSERT_OK(manager().reserve(promised, 4));
  EXPECT_EQ(manager().available_now(), 6);
  EXPECT_TRUE(manager().can_allocate(2, Urgency::growth));
  EXPECT_FALSE(manager().can_allocate(3, Urgency::growth));
  EXPECT_FAILS(try_take(other, 3), exhausted, block);
  take(other, 2);
  take(promised, 3);
  EXPECT_EQ(manager().stats().reserved, 1);
  EXPECT_FAILS(try_take(other, 1), exhausted, block);
  take(promised, 1);
  EXPECT_EQ(manager().stats().reserved, 0);
}

TEST_F(BlockStatesTest, APromiseEndsWithItsHolderOrWithASmallerOne) {
  create(4);
  const HolderId a = holder();
  const HolderId b = holder();
  ASSERT_OK(manager().reserve(a, 4));
  ASSERT_OK(manager().reserve(a, 1));
  ASSERT_OK(manager().reserve(b, 3));
  ASSERT_OK(manager().unregister_holder(b));
  EXPECT_EQ(manager().stats().reserved, 1);
}

TEST_F(BlockStatesTest, TheWatermarkStopsAdmissionButNotGrowth) {
  create(5, 2);
  const HolderId h = holder();
  EXPECT_TRUE(manager().can_allocate(3, Urgency::admission));
  EXPECT_FALSE(manager().can_allocate(4, Urgency::admission));
  take(h, 3, Urgency::admission);
  EXPECT_FAILS(try_take(h, 1, Urgency::admission), exhausted, block);
  take(h, 2, Urgency::growth);
  EXPECT_FAILS(try_take(h, 1, Urgency::growth), exhausted, block);
}

TEST_F(BlockStatesTest, GenerationsTellEveryHandoutApart) {
  create(1);
  const HolderId h = holder();
  std::vector<Generation> seen;
  for (int i = 0; i < 100; ++i) {
    const Handles one = take(h, 1);
    EXPECT_EQ(one.generations[0], manager().generation(one.ids[0]));
    for (const Generation old : seen) EXPECT_NE(old, one.generations[0]);
    seen.push_back(one.generations[0]);
    ASSERT_OK(release(h, one));
  }
}

TEST_F(BlockStatesTest, AManagerCanBeMoved) {
  create(3);
  const HolderId h = holder();
  const Handles two = take(h, 2);
  BlockManager moved = std::move(*manager_);
  manager_.reset();
  EXPECT_EQ(moved.stats().referenced, 2);
  ASSERT_OK(moved.release(h, two.ids, two.generations));
  BlockManager other = BlockManager::create({.num_blocks = 9}).value();
  other = std::move(moved);
  EXPECT_EQ(other.num_blocks(), 3);
  EXPECT_EQ(other.stats().free, 3);
  EXPECT_OK(other.check_invariants());
}

TEST_F(BlockStatesTest, SlicesOfTheProofAcceptAnyRange) {
  create(5);
  take(holder(), 3);
  EXPECT_OK(manager().check_blocks(0, 5));
  EXPECT_OK(manager().check_blocks(3, 100));
  EXPECT_OK(manager().check_blocks(-5, 2));
  EXPECT_OK(manager().check_blocks(100, 1));
}

}  // namespace
}  // namespace kvarena::test
