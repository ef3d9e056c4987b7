// A pool with groups: the order of allocation, the accounts of both levels, and refusals that
// change nothing. Most tests have a group of three blocks a page and one of two.

#include "kvarena/allocator/json.hpp"
#include "kvarena/allocator/operation_log.hpp"
#include "page_pool_fixture.hpp"

#include <array>
#include <string>

namespace kvarena::test {
namespace {

TEST_F(PagePoolTest, IdsCountTheSlotsOfAllGroupsOfAPage) {
  create_pages(7);
  EXPECT_EQ(manager().num_pages(), 7);
  EXPECT_EQ(manager().num_blocks(), 35);
  for (std::int32_t raw = 0; raw < 35; ++raw) {
    const BlockPlace place = manager().place_of(BlockId(raw));
    EXPECT_EQ(place.page, raw / 5);
    EXPECT_EQ(place.group, raw % 5 < 3 ? 0 : 1);
    EXPECT_EQ(place.slot, place.group == 0 ? raw % 5 : raw % 5 - 3);
    EXPECT_EQ(manager().state(BlockId(raw)), BlockState::absent);
  }
}

// Pages and slots of the largest ids, for page sizes around powers of two.
TEST_F(PagePoolTest, PlacesOfTheLargestPools) {
  for (const std::int32_t first : {1, 31, 32, 33, 63, 64}) {
    for (const std::int32_t second : {1, 2, 64}) {
      const std::array<BlockGroup, 2> groups = {BlockGroup{.blocks_per_page = first},
                                                BlockGroup{.blocks_per_page = second}};
      const std::int32_t ids = first + second;
      const std::int32_t pages = ((1 << 22) - 1) / ids;
      create({.num_blocks = pages,
              .max_holders = 1,
              .max_open_tickets = 1,
              .max_fence_entries = 1,
              .groups = groups});
      for (const std::int32_t page : {0, 1, pages / 2, pages - 2, pages - 1}) {
        const std::int32_t last = page * ids + ids - 1;
        EXPECT_EQ(manager().place_of(BlockId(page * ids)), (BlockPlace{page, 0, 0}));
        EXPECT_EQ(manager().place_of(BlockId(last)), (BlockPlace{page, 1, second - 1}));
      }
      manager_.reset();
    }
  }
}

TEST_F(PagePoolTest, AHolderFillsItsOwnPageFirst) {
  create_pages(4);
  const HolderId a = holder();
  const HolderId b = holder();
  EXPECT_EQ(places(take_of(a, 0, 2)), "0.0 0.1");
  EXPECT_EQ(places(take_of(b, 0, 2)), "1.0 1.1");
  EXPECT_EQ(places(take_of(a, 1, 1)), "2.0");
  EXPECT_EQ(places(take_of(a, 0, 2)), "0.2 3.0");
  EXPECT_EQ(manager().page_stats().free, 0);
  EXPECT_EQ(manager().group_stats(0).stranded, 3);
  EXPECT_EQ(manager().group_stats(1).stranded, 1);
}

TEST_F(PagePoolTest, APageIsFreeWithItsLastBlock) {
  create_pages(3);
  const HolderId a = holder();
  const Handles h = take_of(a, 0, 4);
  ASSERT_OK(release(a, h.pick({0, 2})));
  EXPECT_EQ(manager().page_stats().free, 1);
  EXPECT_EQ(manager().group_stats(0).free, 4);
  ASSERT_OK(release(a, h.pick({1})));
  EXPECT_EQ(manager().page_stats().free, 2);
  EXPECT_EQ(manager().state(h.ids[1]), BlockState::absent);
  EXPECT_EQ(places(take_of(a, 0, 3)), "1.1 1.2 0.0");  // its own page, then the page freed last
}

TEST_F(PagePoolTest, ThePageBeforeBecomesTheTailWhenTheTailIsFree) {
  create_pages(4);
  const HolderId a = holder();
  const Handles h = take_of(a, 0, 7);  // pages 0, 1, 2
  ASSERT_OK(release(a, h.pick({4, 5, 6})));
  EXPECT_EQ(places(take_of(a, 0, 2)), "1.1 1.2");
}

TEST_F(PagePoolTest, NobodyContinuesThePageOfAHolderThatEnded) {
  create_pages(4);
  const HolderId a = holder();
  const HolderId b = holder();
  const Handles h = take_of(a, 0, 1);
  ASSERT_OK(retain(b, h));
  ASSERT_OK(release(a, h));
  ASSERT_OK(manager().unregister_holder(a));
  EXPECT_EQ(places(take_of(b, 0, 1)), "1.0");
  const HolderId again = holder();  // the slot of `a`
  EXPECT_EQ(places(take_of(again, 0, 1)), "2.0");
  ASSERT_OK(release(b, h));
  EXPECT_EQ(places(take_of(again, 0, 1)), "2.1");
}

// Without a free page: the page that has been idle longest, then single blocks of the group.
TEST_F(PagePoolTest, OrderOfWhatIsTakenWhenNoPageIsFree) {
  create_pages(5);
  const HolderId a = holder();
  const HolderId b = holder();
  const HolderId c = holder();
  const Handles of_a = take_of(a, 0, 3);   // page 0
  const Handles of_b = take_of(b, 1, 2);   // page 1
  const Handles mixed = take_of(a, 0, 3);  // page 2
  const Handles rest = take_of(b, 0, 1);   // page 3
  const Handles more = take_of(c, 0, 2);   // page 4
  publish(of_a);
  publish(of_b);
  publish(mixed);
  ASSERT_OK(release(b, of_b));                // page 1 is idle first
  ASSERT_OK(release(a, of_a));                // then page 0
  ASSERT_OK(release(a, mixed.pick({0, 1})));  // page 2 has a held block
  EXPECT_EQ(manager().page_stats().evictable, 2);
  EXPECT_EQ(manager().available_now(), 2);

  EXPECT_EQ(places(take_of(c, 0, 2)), "4.2 1.0");
  EXPECT_EQ(places(manager().evicted()), "1.0 1.1");
  EXPECT_EQ(manager().state(of_b.ids[0]), BlockState::absent);
  EXPECT_EQ(places(take_of(a, 1, 1)), "0.0");
  EXPECT_EQ(places(manager().evicted()), "0.0 0.1 0.2");
  EXPECT_EQ(manager().available_now(), 0);

  EXPECT_EQ(places(take_of(a, 0, 2)), "2.1 2.0");  // evictable, the highest slot first
  EXPECT_EQ(places(manager().evicted()), "2.1 2.0");
  EXPECT_EQ(places(take_of(a, 0, 1)), "1.1");  // as full as page 3, and changed last
  EXPECT_EQ(places(take_of(a, 0, 3)), "1.2 3.1 3.2");
  EXPECT_FAILS(try_take_of(a, 0, 1), exhausted, page);
  EXPECT_EQ(places(take_of(c, 1, 1)), "0.1");
  EXPECT_REFUSED(try_take_of(c, 1, 1), exhausted, page);
  EXPECT_EQ(manager().stats().evictions, 7U);
}

TEST_F(PagePoolTest, ARefusalNamesPagesAndTheGroup) {
  create_pages(2);
  const HolderId a = holder();
  const HolderId b = holder();
  const std::array<HolderDemand, 3> demands = {HolderDemand{.holder = a, .count = 2, .group = 0},
                                               HolderDemand{.holder = a, .count = 2, .group = 1},
                                               HolderDemand{.holder = b, .count = 1, .group = 1}};
  Handles none;
  const Status refused = take_each(demands, none).status();
  EXPECT_EQ(refused, exhausted(Resource::page, 3, 2, 1));
  EXPECT_EQ(manager().page_stats().free, 2);
  const Explanation e = manager().explain(refused);
  EXPECT_EQ(e.requested, 3);
  EXPECT_EQ(e.missing, 1);
  EXPECT_EQ(e.pages.num_pages, 2);
  EXPECT_EQ(e.num_groups, 2U);
  EXPECT_OK(take_each(std::span(demands).first(2), none));
  EXPECT_EQ(places(none), "0.0 0.1 1.0 1.1");
}

TEST_F(PagePoolTest, DemandsOfAHolderFollowOneAnotherWithRisingGroups) {
  create_pages(8);
  const HolderId a = holder();
  const HolderId b = holder();
  Handles none;
  const auto refuse = [&](std::initializer_list<HolderDemand> demands) {
    return take_each(std::vector<HolderDemand>(demands), none);
  };
  EXPECT_REFUSED(refuse({{.holder = a, .count = 1}, {.holder = a, .count = 1}}), duplicate_argument,
                 holder);
  EXPECT_REFUSED(refuse({{.holder = a, .count = 1, .group = 1}, {.holder = a, .count = 1}}),
                 duplicate_argument, holder);
  EXPECT_REFUSED(refuse({{.holder = a, .count = 1},
                         {.holder = b, .count = 1},
                         {.holder = a, .count = 1, .group = 1}}),
                 duplicate_argument, holder);
  EXPECT_REFUSED(refuse({{.holder = a, .count = 1, .group = 2}}), invalid_argument, num_groups);
  EXPECT_REFUSED(refuse({{.holder = a, .count = 1, .group = -1}}), invalid_argument, num_groups);
  EXPECT_REFUSED(refuse({{.holder = HolderId(77), .count = 1}}), not_found, holder);
}

TEST_F(PagePoolTest, NewWorkLeavesTheWatermarkAndHasPagesOfItsOwn) {
  create_pages(4, 2);
  const HolderId a = holder();
  const HolderId b = holder();
  take_of(a, 0, 1, Urgency::admission);
  EXPECT_EQ(places(take_of(a, 0, 1, Urgency::admission)), "0.1");
  take_of(a, 1, 1, Urgency::admission);
  EXPECT_REFUSED(try_take_of(b, 0, 1, Urgency::admission), exhausted, page);
  EXPECT_EQ(places(take_of(a, 0, 1, Urgency::admission)), "0.2");  // of its own page
  take_of(b, 0, 4);
  // A block of b's page is for growth only.
  EXPECT_REFUSED(try_take_of(a, 0, 1, Urgency::admission), exhausted, page);
  EXPECT_EQ(places(take_of(a, 0, 1)), "3.1");
}

TEST_F(PagePoolTest, PromisedPagesAreForTheirHolder) {
  create_pages(3);
  const HolderId a = holder();
  const HolderId b = holder();
  ASSERT_OK(manager().reserve(a, 2));
  EXPECT_FAILS(manager().reserve(b, 2), exhausted, reservation);
  take_of(b, 0, 2);
  EXPECT_EQ(places(take_of(b, 0, 1)), "0.2");
  EXPECT_REFUSED(try_take_of(b, 0, 1), exhausted, page);
  take_of(a, 1, 3);
  EXPECT_EQ(manager().holder(a)->reserved, 0);
  EXPECT_EQ(manager().page_stats().reserved, 0);
}

TEST_F(PagePoolTest, AnIdlePageThatIsPromisedIsNotTakenApart) {
  create_pages(2);
  const HolderId a = holder();
  const HolderId b = holder();
  const Handles h = take_of(a, 0, 3);
  publish(h);
  ASSERT_OK(release(a, h));
  take_of(b, 0, 3);
  ASSERT_OK(manager().reserve(a, 1));
  EXPECT_REFUSED(try_take_of(b, 0, 1), exhausted, page);
  EXPECT_REFUSED(retain(b, h.pick({1})), exhausted, page);
  ASSERT_OK(retain(a, h.pick({1, 1, 2})));  // one page of the promise
  EXPECT_EQ(manager().holder(a)->reserved, 0);
  EXPECT_EQ(manager().state(h.ids[0]), BlockState::evictable);
  EXPECT_EQ(places(take_of(b, 0, 1)), "0.0");
}

TEST_F(PagePoolTest, ARevivedPageHasNoOwner) {
  create_pages(3);
  const HolderId a = holder();
  const Handles h = take_of(a, 0, 2);
  publish(h);
  ASSERT_OK(release(a, h));
  ASSERT_OK(retain(a, h.pick({0})));
  EXPECT_EQ(places(take_of(a, 0, 1)), "1.0");
}

TEST_F(PagePoolTest, FencedBlocksKeepTheirPage) {
  create_pages(2);
  const HolderId a = holder();
  const Handles h = take_of(a, 0, 4);
  const Ticket t = ticket();
  const Ticket later = ticket();
  ASSERT_OK(release_after(t, a, h.pick({0, 1})));
  ASSERT_OK(release_after(later, a, h.pick({2})));
  EXPECT_EQ(manager().group_stats(0).fenced, 3);
  EXPECT_EQ(manager().available_after(t), 0);
  EXPECT_EQ(manager().available_after(later), 1);
  expect_balance();
  ASSERT_OK(manager().retire(later));
  EXPECT_EQ(manager().available_after(t), 1);
  ASSERT_OK(manager().retire(t));
  EXPECT_EQ(manager().page_stats().free, 1);
}

TEST_F(PagePoolTest, ARefusedReleaseChangesNothing) {
  create_pages(3);
  const HolderId a = holder();
  const HolderId b = holder();
  const Handles h = take_of(a, 0, 4);
  const Handles other = take_of(b, 1, 1);
  const Ticket t = ticket();
  EXPECT_REFUSED(release(a, h.pick({0, 1, 2, 2})), double_release, block);
  ASSERT_OK(release_after(t, a, h.pick({0})));
  ASSERT_OK(retain(a, h.pick({1})));
  ASSERT_OK(release_after(t, a, h.pick({1})));
  EXPECT_REFUSED(release(a, h.pick({1, 2, 1})), double_release, block);
  EXPECT_REFUSED(release(b, h.pick({1, 2})), reference_underflow, holder);
  EXPECT_REFUSED(release_after(t, a, h.pick({3, 3})), double_release, block);
  ASSERT_OK(release(a, h.pick({2, 1, 3})));
  EXPECT_EQ(manager().page_stats().of_groups, 2);
  ASSERT_OK(manager().retire(t));
  EXPECT_REFUSED(release(a, h.pick({1})), double_release, block);
  EXPECT_EQ(manager().page_stats().of_groups, 1);
  EXPECT_EQ(ViolationRecorder::entries().size(), 5U);
}

TEST_F(PagePoolTest, AHandleOfAPageThatWasTurnedIsStale) {
  create_pages(1);
  const HolderId a = holder();
  const Handles first = take_of(a, 0, 1);
  ASSERT_OK(release(a, first));
  const Handles other = take_of(a, 1, 1);
  ASSERT_OK(release(a, other));
  const Handles second = take_of(a, 0, 1);
  EXPECT_EQ(first.ids, second.ids);
  EXPECT_REFUSED(retain(a, first), stale_handle, block);
}

TEST_F(PagePoolTest, QuarantineTakesBlocksAndInTheEndPages) {
  create_pages(3);
  const HolderId a = holder();
  const Handles h = take_of(a, 0, 2);
  EXPECT_EQ(manager().quarantine(h.ids[0]).value(), false);
  const BlockId free_slot(2);
  EXPECT_EQ(manager().quarantine(free_slot).value(), true);
  EXPECT_EQ(manager().group_stats(0).offline, 1);
  EXPECT_EQ(manager().page_stats().offline, 0);
  expect_balance();
  EXPECT_FAILS(manager().quarantine(BlockId(3)), failed_precondition, block);  // of group 1
  ASSERT_OK(release(a, h));
  EXPECT_EQ(manager().page_stats().offline, 1);
  EXPECT_EQ(manager().state(h.ids[0]), BlockState::offline);
  EXPECT_EQ(manager().state(h.ids[1]), BlockState::absent);
  expect_balance();
  EXPECT_EQ(manager().quarantine(BlockId(8)).value(), true);  // page 1 is free
  EXPECT_EQ(manager().page_stats().offline, 2);
  ASSERT_OK(manager().check_invariants());
  ASSERT_OK(manager().restore(BlockId(8)));
  ASSERT_OK(manager().restore(free_slot));
  EXPECT_EQ(manager().page_stats().offline, 1);
  ASSERT_OK(manager().restore(h.ids[0]));
  EXPECT_EQ(manager().page_stats().free, 3);
  ASSERT_OK(manager().reserve(a, 3));
  EXPECT_REFUSED(manager().quarantine(BlockId(0)), exhausted, reservation);
}

TEST_F(PagePoolTest, ForgottenContentFreesItsPage) {
  create_pages(2);
  const HolderId a = holder();
  const Handles h = take_of(a, 0, 2);
  publish(h);
  ASSERT_OK(release(a, h));
  ASSERT_OK(manager().set_content(h.ids[0], h.generations[0], BlockContent::unwritten));
  EXPECT_EQ(manager().page_stats().evictable, 1);
  EXPECT_EQ(manager().group_stats(0).stranded, 0);
  ASSERT_OK(manager().set_content(h.ids[1], h.generations[1], BlockContent::failed));
  EXPECT_EQ(manager().page_stats().free, 2);
}

TEST_F(PagePoolTest, HoldersAreReportedInBytes) {
  create_pages(8);
  const HolderId a = holder(7);
  const HolderId b = holder(8);
  const Handles h = take_of(a, 0, 4);
  take_of(a, 1, 1);
  ASSERT_OK(retain(b, h.pick({0})));
  EXPECT_EQ(manager().holder(a)->bytes, 5500);
  ASSERT_OK(release(a, h.pick({0, 1})));
  EXPECT_EQ(manager().holder(a)->bytes, 3500);
  EXPECT_EQ(manager().holder(b)->bytes, 1000);
  const Explanation e = manager().explain(9);
  EXPECT_FALSE(e.fits);
  EXPECT_EQ(e.usable, 5);
  EXPECT_EQ(e.groups[0].stranded, 3);
  const std::string text = to_string(e);
  EXPECT_NE(text.find("pages: 9 requested, 5 usable, 4 missing"), std::string::npos) << text;
  EXPECT_NE(text.find("group 0 (full): 2 pages, 6 blocks of 1000 B: 3 free (3 stranded)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("test 7: 3 references, 0 reserved, 3500 B"), std::string::npos) << text;
  const std::string json = to_json(e);
  EXPECT_NE(json.find(R"("pages":{"total":8,"free":5,"of_groups":3,"offline":0,"evictable":0)"),
            std::string::npos)
      << json;
  EXPECT_NE(
      json.find(R"({"group":0,"kind":"full","pages":2,"blocks_per_page":3,"block_bytes":1000,)"
                R"("free":3,"referenced":3)"),
      std::string::npos)
      << json;
  EXPECT_NE(json.find(R"("holder_bytes":[3500,1000])"), std::string::npos) << json;
  EXPECT_EQ(to_json(Explanation{}).find("pages"), std::string::npos);
}

TEST_F(PagePoolTest, TheLogNamesTheGroupAndTheCall) {
  struct Groups final : OperationLog {
    void append(const Operation& operation) override {
      if (operation.kind != OperationKind::allocate) return;
      groups.push_back(operation.group);
      left.push_back(operation.left_in_call);
    }
    std::vector<std::int32_t> groups;
    std::vector<std::int32_t> left;
  } log;
  create({.num_blocks = 4, .max_holders = 8, .log = &log, .groups = kThreeAndTwo});
  const HolderId a = holder();
  const std::array<HolderDemand, 2> demands = {HolderDemand{.holder = a, .count = 1, .group = 0},
                                               HolderDemand{.holder = a, .count = 1, .group = 1}};
  Handles none;
  ASSERT_OK(take_each(demands, none));
  ASSERT_OK(take_each(std::span(demands).first(1), none));
  EXPECT_EQ(log.groups, (std::vector<std::int32_t>{0, 1, 0}));
  EXPECT_EQ(log.left, (std::vector<std::int32_t>{1, 0, 0}));
}

TEST(PagePool, RefusesGroupsThatDoNotFit) {
  const auto refused = [](std::vector<BlockGroup> groups, std::int64_t pages = 4) {
    return BlockManager::create({.num_blocks = pages, .groups = groups}).status();
  };
  EXPECT_FAILS(refused({{.blocks_per_page = 0}}), invalid_argument, block_size);
  EXPECT_FAILS(refused({{.blocks_per_page = 65}}), invalid_argument, block_size);
  EXPECT_FAILS(refused({{.blocks_per_page = 1, .block_bytes = 0}}), invalid_argument, block_bytes);
  EXPECT_FAILS(refused(std::vector<BlockGroup>(33)), invalid_argument, num_groups);
  EXPECT_REFUSES(refused({{.blocks_per_page = 64}}, 1 << 23), invalid_argument, num_blocks);
  EXPECT_OK(refused(std::vector<BlockGroup>(32)));
}

// Everything that a page can be, filled at once: 64 blocks a page.
TEST_F(PagePoolTest, PagesOfSixtyFourBlocks) {
  const std::array<BlockGroup, 2> groups = {BlockGroup{.blocks_per_page = 64},
                                            BlockGroup{.blocks_per_page = 1}};
  create({.num_blocks = 3, .max_holders = 4, .groups = groups});
  const HolderId a = holder();
  const Handles h = take_of(a, 0, 130);
  EXPECT_EQ(manager().group_stats(0).pages, 3);
  EXPECT_EQ(manager().group_stats(0).stranded, 62);
  EXPECT_EQ(manager().place_of(h.ids[63]), (BlockPlace{0, 0, 63}));
  ASSERT_OK(release(a, h));
  EXPECT_EQ(manager().page_stats().free, 3);
}

}  // namespace
}  // namespace kvarena::test
