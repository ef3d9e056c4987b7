// The figures and the texts: stats, explain, holders, leak report.

#include "block_manager_fixture.hpp"
#include "kvarena/allocator/accounts.hpp"

namespace kvarena::test {
namespace {

class BlockAccountsTest : public BlockManagerTest {
 protected:
  static bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

TEST_F(BlockAccountsTest, StatsCountStatesAndHistory) {
  create(10, 1);
  const HolderId h = holder();
  const Handles six = take(h, 6);
  const Ticket t = ticket();
  ASSERT_OK(manager().set_content(six.ids[0], six.generations[0], BlockContent::published));
  ASSERT_OK(release(h, six.pick({0, 1})));
  ASSERT_OK(release_after(t, h, six.pick({2})));
  ASSERT_OK(manager().quarantine(BlockId(9)));
  ASSERT_OK(manager().reserve(h, 2));
  EXPECT_FALSE(try_take(h, 100));
  const BlockStats s = manager().stats();
  EXPECT_EQ(s.num_blocks, 10);
  EXPECT_EQ(s.free, 4);
  EXPECT_EQ(s.referenced, 3);
  EXPECT_EQ(s.fenced, 1);
  EXPECT_EQ(s.evictable, 1);
  EXPECT_EQ(s.offline, 1);
  EXPECT_EQ(s.reserved, 2);
  EXPECT_EQ(s.watermark, 1);
  EXPECT_EQ(s.holders, 1);
  EXPECT_EQ(s.references, 3);
  EXPECT_EQ(s.fence_entries, 1);
  EXPECT_EQ(s.peak_allocated, 6);
  EXPECT_EQ(s.holders_ever, 1U);
  EXPECT_EQ(s.allocations, 6U);
  EXPECT_EQ(s.releases, 3U);
  EXPECT_EQ(s.evictions, 0U);
  EXPECT_EQ(s.exhaustions, 1U);
  EXPECT_EQ(s.allocated(), 6);
  EXPECT_EQ(s.available(), 5);
  EXPECT_TRUE(s.balanced());
}

TEST_F(BlockAccountsTest, UnbalancedFiguresSaySo) {
  BlockStats stats{.num_blocks = 3, .free = 1, .referenced = 1};
  EXPECT_FALSE(stats.balanced());
  stats.offline = 1;
  EXPECT_TRUE(stats.balanced());
}

TEST_F(BlockAccountsTest, ExhaustionIsExplainedAndOverAfterOneRelease) {
  create(8);
  const HolderId big = holder(41, "sequence");
  const HolderId small = holder(42, "sequence");
  take(big, 5);
  const Handles three = take(small, 3);
  EXPECT_REFUSED(try_take(big, 2), exhausted, block);
  const Explanation e = manager().explain(2);
  EXPECT_EQ(e.requested, 2);
  EXPECT_FALSE(e.fits);
  EXPECT_EQ(e.usable, 0);
  EXPECT_EQ(e.missing, 2);
  EXPECT_EQ(e.stats.referenced, 8);
  EXPECT_EQ(e.fenced_returning, 0);
  EXPECT_EQ(e.oldest_open_ticket, kNoTicket);
  ASSERT_EQ(e.num_largest, 2U);
  EXPECT_EQ(e.largest[0].holder, big);
  EXPECT_EQ(e.largest[0].references, 5);
  EXPECT_EQ(e.largest[1].holder, small);
  const std::string text = to_string(e);
  EXPECT_TRUE(contains(text, "2 requested")) << text;
  EXPECT_TRUE(contains(text, "0 usable")) << text;
  EXPECT_TRUE(contains(text, "2 missing")) << text;
  EXPECT_TRUE(contains(text, "8 referenced")) << text;
  EXPECT_TRUE(contains(text, "sequence 41: 5 references")) << text;
  EXPECT_TRUE(contains(text, "to make it fit")) << text;
  ASSERT_OK(release(small, three));
  EXPECT_TRUE(manager().explain(2).fits);
  EXPECT_TRUE(contains(to_string(manager().explain(2)), "it fits"));
  EXPECT_OK(try_take(big, 2));
}

TEST_F(BlockAccountsTest, ExplainNamesTheTicketToWaitFor) {
  create(4);
  const HolderId h = holder();
  const Handles all = take(h, 4);
  const Ticket t1 = ticket();
  ticket();
  ASSERT_OK(release_after(t1, h, all.pick({0, 1})));
  const Explanation e = manager().explain(2);
  EXPECT_EQ(e.fenced_returning, 2);
  EXPECT_EQ(e.oldest_open_ticket, t1);
  const std::string text = to_string(e);
  EXPECT_TRUE(contains(text, "retire ticket " + std::to_string(t1.value))) << text;
  EXPECT_TRUE(contains(text, "2 fenced")) << text;
}

TEST_F(BlockAccountsTest, ExplainSaysWhenARequestCanNeverFit) {
  create(4);
  ASSERT_OK(manager().quarantine(BlockId(0)));
  const std::string text = to_string(manager().explain(4));
  EXPECT_TRUE(contains(text, "can never fit")) << text;
  EXPECT_TRUE(contains(text, "3 blocks in service")) << text;
}

TEST_F(BlockAccountsTest, ExplainFollowsUrgencyAndPromises) {
  create(10, 4);
  const HolderId h = holder();
  ASSERT_OK(manager().reserve(h, 2));
  EXPECT_EQ(manager().explain(8, Urgency::growth).usable, 8);
  EXPECT_EQ(manager().explain(8, Urgency::admission).usable, 4);
  EXPECT_EQ(manager().explain(8, Urgency::admission).missing, 4);
}

TEST_F(BlockAccountsTest, WhatTheWatermarkLacksIsMissingToo) {
  create(4, 2);
  const HolderId big = holder();
  take(big, 3);  // growth may take what admission leaves
  EXPECT_EQ(manager().explain(2, Urgency::admission).usable, 0);
  EXPECT_EQ(manager().explain(2, Urgency::admission).missing, 3);
  EXPECT_EQ(manager().explain(0, Urgency::admission).missing, 0);
}

TEST_F(BlockAccountsTest, AHolderWithoutAPurposeHasAnEmptyOne) {
  create(4);
  const HolderId id = manager().register_holder({.purpose = nullptr}).value();
  EXPECT_EQ(manager().holder(id)->purpose, "");
}

TEST_F(BlockAccountsTest, ExplainListsTheLargestEightLargestFirstThenById) {
  create(100);
  std::vector<HolderId> holders;
  for (std::uint64_t i = 0; i < 12; ++i) {
    holders.push_back(holder(i));
    take(holders.back(), i < 6 ? 3 : i);
  }
  const Explanation e = manager().explain(1);
  ASSERT_EQ(e.num_largest, Explanation::kMaxHolders);
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(e.largest[i].number, 11 - i);
  EXPECT_EQ(e.largest[6].holder, holders[0]);
  EXPECT_EQ(e.largest[7].holder, holders[1]);
}

TEST_F(BlockAccountsTest, ExplainCountsPromisesAsHeld) {
  create(20);
  const HolderId holding = holder(1);
  const HolderId promised = holder(2);
  holder(3);
  take(holding, 4);
  ASSERT_OK(manager().reserve(promised, 9));
  const Explanation e = manager().explain(8);
  ASSERT_EQ(e.num_largest, 2U) << "who has nothing is not listed";
  EXPECT_EQ(e.largest[0].holder, promised);
  EXPECT_EQ(e.largest[1].holder, holding);
}

TEST_F(BlockAccountsTest, TheLeakReportNamesWhoHoldsWhatSinceWhen) {
  create(5);
  const HolderId h = manager()
                         .register_holder({.number = 7,
                                           .owner = 12,
                                           .purpose = "transfer",
                                           .since_ns = 100,
                                           .deadline_ns = 250})
                         .value();
  const HolderId idle = holder(8);
  take(h, 2);
  ASSERT_OK(manager().reserve(h, 1));
  const std::vector<HolderReport> report = manager().holders();
  ASSERT_EQ(report.size(), 2U);
  const HolderReport& first = report[0].holder == h ? report[0] : report[1];
  EXPECT_EQ(first.number, 7U);
  EXPECT_EQ(first.owner, 12U);
  EXPECT_EQ(first.purpose, "transfer");
  EXPECT_EQ(first.references, 2);
  EXPECT_EQ(first.reserved, 1);
  EXPECT_EQ(first.since_ns, 100);
  EXPECT_EQ(first.deadline_ns, 250);
  EXPECT_LT(report[0].holder, report[1].holder);
  EXPECT_EQ(manager().holder(idle)->references, 0);
  EXPECT_FAILS(manager().holder(kNoHolder), not_found, holder);
}

TEST_F(BlockAccountsTest, StatesHaveNames) {
  EXPECT_EQ(name_of(BlockState::free), "free");
  EXPECT_EQ(name_of(BlockState::referenced), "referenced");
  EXPECT_EQ(name_of(BlockState::fenced), "fenced");
  EXPECT_EQ(name_of(BlockState::evictable), "evictable");
  EXPECT_EQ(name_of(BlockState::offline), "offline");
}

}  // namespace
}  // namespace kvarena::test
