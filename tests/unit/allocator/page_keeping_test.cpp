// Pages of holders with a promise: nobody takes them apart.

#include "page_pool_fixture.hpp"

namespace kvarena::test {
namespace {

// A promise of pages counts on all slots of these pages.
TEST_F(PagePoolTest, PagesOfAPromiseAreNotTakenApart) {
  create_pages(3);
  const HolderId a = holder();
  const HolderId b = holder();
  const HolderId c = holder();
  ASSERT_OK(manager().reserve(a, 2));
  const Handles first = take_of(a, 0, 1);
  take_of(b, 0, 3);
  EXPECT_REFUSED(try_take_of(b, 0, 1), exhausted, page);
  EXPECT_EQ(manager().group_stats(0).stranded, 2);
  EXPECT_EQ(places(take_of(a, 0, 5)), "0.1 0.2 2.0 2.1 2.2");
  ASSERT_OK(manager().check_invariants());
  // The page is nobody's when its holder has ended.
  const Handles all = {{BlockId(0), BlockId(1), BlockId(2), BlockId(10), BlockId(11), BlockId(12)},
                       std::vector<Generation>(6)};
  ASSERT_OK(retain(c, all.pick({0, 4})));
  ASSERT_OK(release(a, all));
  EXPECT_REFUSED(try_take_of(b, 0, 1), exhausted, page);
  ASSERT_OK(manager().unregister_holder(a));
  ASSERT_OK(manager().check_invariants());
  // Both pages are as full as each other; the one turned first was given up last.
  EXPECT_EQ(places(take_of(b, 0, 4)), "0.1 0.2 2.0 2.2");
}

TEST_F(PagePoolTest, CachedBlocksInPagesOfAPromiseAreNotEvictedOneByOne) {
  create_pages(2);
  const HolderId a = holder();
  const HolderId b = holder();
  const Handles h = take_of(a, 0, 3);
  publish(h);
  ASSERT_OK(release(a, h.pick({0, 1})));
  take_of(b, 0, 3);
  ASSERT_OK(manager().reserve(a, 0));  // its pages are its own from now on
  EXPECT_REFUSED(try_take_of(b, 0, 1), exhausted, page);
  ASSERT_OK(manager().check_invariants());
  ASSERT_OK(release(a, h.pick({2})));
  EXPECT_EQ(manager().page_stats().available(), 1);
  EXPECT_EQ(places(take_of(b, 0, 1)), "0.0");
}

// A block that goes out of service may be one that a promise counts on: a page replaces it.
TEST_F(PagePoolTest, QuarantineInAPageOfAPromisePromisesAnother) {
  create_pages(3);
  const HolderId a = holder();
  const HolderId b = holder();
  ASSERT_OK(manager().reserve(a, 1));
  take_of(a, 0, 1);
  EXPECT_EQ(manager().quarantine(BlockId(1)).value(), true);
  EXPECT_EQ(manager().holder(a)->reserved, 1);
  EXPECT_EQ(manager().page_stats().reserved, 1);
  ASSERT_OK(manager().check_invariants());
  take_of(b, 1, 2);
  EXPECT_REFUSED(try_take_of(b, 1, 1), exhausted, page);
  EXPECT_REFUSED(manager().quarantine(BlockId(2)), exhausted, reservation);
  EXPECT_EQ(places(take_of(a, 0, 2)), "0.2 2.0");
}

// The demand at fault is one that wants more than was promised.
TEST_F(PagePoolTest, ADemandWithinItsPromiseIsNotAtFault) {
  create_pages(2);
  const HolderId a = holder();
  const HolderId b = holder();
  take_of(b, 0, 3);
  ASSERT_OK(manager().reserve(a, 1));
  take_of(a, 0, 1);
  const HolderDemand demands[] = {{.holder = b, .count = 1}, {.holder = a, .count = 2}};
  Handles handles;
  EXPECT_REFUSED(take_each(demands, handles), exhausted, page);
  EXPECT_EQ(manager().refused_demand(), 0);
  ASSERT_OK(take_each(std::span(demands).subspan(1), handles));
}

}  // namespace
}  // namespace kvarena::test
