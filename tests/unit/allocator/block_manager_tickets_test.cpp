// Tickets and holders over a long life: what they cost, counted in entries looked at, ids that
// never come back, and ids of other managers.

#include "support/manager_access.hpp"
#include "unit/allocator/block_manager_fixture.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvarena::test {
namespace {

class BlockTickets : public BlockManagerTest {
 protected:
  std::uint64_t entries_visited() { return parts_of(manager()).fences.entries_visited(); }
};

TEST_F(BlockTickets, RetiringCostsTheSameForEachReferenceHoweverManyShareABlock) {
  constexpr std::int64_t kBlocks = 16;
  for (const int sharers : {4, 64, 1024}) {
    create({.num_blocks = kBlocks, .max_holders = 2000, .max_fence_entries = 1 << 20});
    const HolderId first = holder();
    const Handles all = take(first, kBlocks);
    const Ticket t = ticket();
    for (int i = 0; i < sharers; ++i) {
      const HolderId sharer = holder();
      ASSERT_OK(manager().retain(sharer, all.ids, all.generations));
      ASSERT_OK(manager().release_after(t, sharer, all.ids, all.generations));
    }
    const std::uint64_t before = entries_visited();
    ASSERT_OK(manager().retire(t));
    const auto references = static_cast<std::uint64_t>(sharers * kBlocks);
    EXPECT_LE(entries_visited() - before, 8 * references) << sharers << " sharers";
    EXPECT_EQ(manager().stats().fence_entries, 0);
  }
}

TEST_F(BlockTickets, ARefusedReleaseCostsTheSameForEachHandle) {
  for (const std::int64_t handles : {16, 256, 4096}) {
    create(handles);
    const HolderId h = holder();
    Handles all = take(h, static_cast<std::size_t>(handles));
    const Ticket t = ticket();
    all.generations.back() = Generation(77);
    const std::uint64_t before = entries_visited();
    EXPECT_FALSE(manager().release_after(t, h, all.ids, all.generations));
    EXPECT_LE(entries_visited() - before, static_cast<std::uint64_t>(16 * handles));
    EXPECT_EQ(manager().stats().fence_entries, 0);
  }
}

TEST_F(BlockTickets, ARefusedReleaseLeavesWhatWasFencedBefore) {
  create(4);
  const HolderId h = holder();
  const Handles all = take(h, 4);
  const Ticket t = ticket();
  ASSERT_OK(release_after(t, h, all.pick({0, 1})));
  EXPECT_FALSE(release_after(t, h, all.pick({2, 3, 0})));
  EXPECT_EQ(manager().stats().fence_entries, 2);
  ASSERT_OK(manager().check_invariants());
  ASSERT_OK(manager().retire(t));
  EXPECT_EQ(manager().stats().free, 2);
}

TEST_F(BlockTickets, ATicketThatStaysOpenStopsNoOther) {
  create({.num_blocks = 4, .max_open_tickets = 3});
  const HolderId h = holder();
  const Handles all = take(h, 1);
  const Ticket transfer = ticket();
  ASSERT_OK(release_after(transfer, h, all));
  for (int i = 0; i < 1000; ++i) {
    const Ticket a = ticket();
    const Ticket b = ticket();
    EXPECT_GT(b, a);
    EXPECT_FALSE(manager().open_ticket()) << "three are open";
    EXPECT_EQ(manager().oldest_open_ticket(), transfer);
    EXPECT_NE(manager().place_of(a), manager().place_of(transfer));
    ASSERT_OK(manager().retire(b));
    ASSERT_OK(manager().retire(a));
  }
  EXPECT_EQ(manager().state(all.ids[0]), BlockState::fenced);
  ASSERT_OK(manager().retire(transfer));
  EXPECT_EQ(manager().oldest_open_ticket(), kNoTicket);
  EXPECT_EQ(manager().stats().free, 4);
}

TEST_F(BlockTickets, OfAnotherManagerAreRefused) {
  create(4);
  const Ticket here = ticket();
  auto other = BlockManager::create({.num_blocks = 4}).value();
  const Ticket there = *other.open_ticket();
  EXPECT_NE(here, there);
  EXPECT_FALSE(manager().is_open(there));
  EXPECT_FAILS(manager().retire(there), not_found, ticket);
  const HolderId h = holder();
  const Handles one = take(h, 1);
  EXPECT_FAILS(release_after(there, h, one), not_found, ticket);
  EXPECT_TRUE(manager().is_open(here));
}

TEST(HolderTableTest, IdsEndBeforeTheyComeBack) {
  HolderTable table(2, HolderTable::kLastGeneration - 1);
  std::vector<HolderId> ids;
  while (!table.is_full()) {
    const HolderId id = table.insert({});
    EXPECT_NE(id, kNoHolder);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), id), 0);
    ids.push_back(id);
    table.erase(id);
    EXPECT_EQ(table.find(id), nullptr);
  }
  EXPECT_EQ(ids.size(), 4U) << "two of each slot";
  EXPECT_EQ(table.size(), 0);
}

// ---- content ------------------------------------------------------------------------------------

TEST_F(BlockTickets, ContentIsKeptThroughARefusedRelease) {
  create(4);
  const HolderId h = holder();
  const Handles all = take(h, 3);
  const BlockContent contents[] = {BlockContent::being_written, BlockContent::failed,
                                   BlockContent::published};
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_OK(manager().set_content(all.ids[i], all.generations[i], contents[i]));
  }
  EXPECT_FALSE(release(h, all.pick({0, 1, 2, 0})));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(manager().content(all.ids[i]), contents[i]);
  ASSERT_OK(release(h, all));
  EXPECT_EQ(manager().stats().evictable, 1) << "only what was published is kept";
  EXPECT_EQ(manager().stats().free, 3);
  EXPECT_EQ(manager().content(all.ids[0]), BlockContent::unwritten);
  EXPECT_FAILS(manager().set_content(all.ids[2], all.generations[2], BlockContent::being_written),
               failed_precondition, block);
  ASSERT_OK(manager().set_content(all.ids[2], all.generations[2], BlockContent::failed));
  EXPECT_EQ(manager().stats().free, 4);
  EXPECT_FAILS(manager().set_content(all.ids[2], all.generations[2], static_cast<BlockContent>(9)),
               invalid_argument, content);
}

// ---- explanations -------------------------------------------------------------------------------

TEST_F(BlockTickets, ARefusalIsExplainedAsItWas) {
  create(8, 2);
  const HolderId a = holder();
  ASSERT_OK(manager().reserve(a, 4));
  const HolderId b = holder();
  std::vector<BlockId> ids(7);
  std::vector<Generation> generations(7);
  const std::vector<HolderDemand> demands{{a, 4}, {b, 3}};
  const Status refused =
      manager().allocate_each(demands, ids, generations, Urgency::admission).status();
  Explanation why = manager().explain(refused);
  EXPECT_FALSE(why.fits);
  EXPECT_EQ(why.requested, 7);
  EXPECT_EQ(why.usable, 6) << "two that nobody was promised beyond the watermark, and a's four";
  EXPECT_EQ(why.promised, 4);
  EXPECT_EQ(why.missing, 1);
  EXPECT_EQ(why.urgency, Urgency::admission);
  EXPECT_EQ(why.stats.free, 8);
  const std::string text = to_string(why);
  EXPECT_NE(text.find("7 requested for new work, 6 usable (4 of them promised to those who ask), "
                      "1 missing"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("it fits"), std::string::npos) << text;
  take(b, 4);
  why = manager().explain(refused);
  EXPECT_EQ(why.stats.free, 8) << "as they were";
}

}  // namespace
}  // namespace kvarena::test
