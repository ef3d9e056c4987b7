// The audit behind a publisher of a pool with groups: faults in pages, groups and lists, planted in
// the manager's own tables.

#include "allocator/page_pool.hpp"
#include "support/log_capture.hpp"
#include "support/manager_access.hpp"
#include "support/manual_clock.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <ostream>
#include <string>

namespace kvarena {

/// Faults, planted into the pages of a manager.
struct PagePoolProbe {
  static void lose_free_page(PagePool& pages) { --pages.num_free_; }
  static void list_carved_page_as_free(PagePool& pages) { pages.free_[0] = 0; }
  static void count_page_twice(PagePool& pages) { ++pages.books_[1].pages; }
  static void forget_fence(PagePool& pages) { --pages.books_[0].fenced; }
  static void move_count_between_groups(PagePool& pages) {
    --pages.books_[0].free;
    ++pages.books_[0].evictable;
  }
  static void free_held_slot(PagePool& pages) { pages.pages_[0].free |= 1; }
  static void keep_empty_page(PagePool& pages) {
    PagePool::Page& page = pages.pages_[pages.free_[static_cast<std::size_t>(--pages.num_free_)]];
    page.group = 0;
    page.free = pages.books_[0].all_slots();
    ++pages.books_[0].pages;
    pages.change(page, pages.books_[0].blocks_per_page, 0);
  }
  static void break_link(PagePool& pages) {
    for (PagePool::List& list : pages.books_[0].by_free) list.head = PagePool::kNone;
  }
  static void leave_queue(PagePool& pages) { pages.idle_ = {}; }
};

namespace test {
namespace {

/// A pool of 8 pages: three blocks of layers that keep all tokens, or two of a window of 8 tokens.
struct GroupedPool {
  static constexpr std::array<BlockGroup, 2> kBlocks{BlockGroup{3, 100, PagedKind::full},
                                                     BlockGroup{2, 150, PagedKind::window}};
  static constexpr std::array<TableGroup, 2> kTables{
      TableGroup{.kind = PagedKind::full, .block_size_tokens = 4},
      TableGroup{.kind = PagedKind::window, .block_size_tokens = 4, .limit_tokens = 8}};

  ManualClock clock;
  BlockManager manager =
      BlockManager::create(
          {.num_blocks = 8, .max_holders = 8, .groups = kBlocks, .page_bytes = 300})
          .value();
  BlockTables tables =
      BlockTables::create(manager, {.max_sequences = 8, .groups = kTables}).value();
  StepPublisher publisher =
      StepPublisher::create(manager, tables, {.audit_blocks = 4, .clock = &clock}).value();
  std::uint64_t step = 0;

  SequenceId add(std::int32_t num_tokens) {
    const SequenceId sequence = tables.create_sequence().value();
    const AppendDemand demand{sequence, num_tokens};
    EXPECT_OK(tables.append({&demand, 1}));
    tables.settle_append();
    return sequence;
  }
  PoolSnapshot publish() {
    clock.advance(1);
    publisher.publish({.steps_ended = ++step});
    return publisher.snapshot();
  }
};

TEST(GroupAudit, ASnapshotHasTheFiguresOfBothLevels) {
  GroupedPool pool;
  EXPECT_EQ(pool.publisher.snapshot().pages.free, 8);
  pool.add(16);  // 4 blocks of all tokens; a window keeps the last 8: 2 blocks
  const PoolSnapshot seen = pool.publish();
  EXPECT_EQ(seen.num_groups, 2);
  EXPECT_EQ(seen.kinds[1], PagedKind::window);
  EXPECT_EQ(seen.pages.page_bytes, 300);
  EXPECT_EQ(seen.pages.num_pages, 8);
  EXPECT_EQ(seen.pages.of_groups, seen.groups[0].pages + seen.groups[1].pages);
  EXPECT_EQ(seen.groups[0].pages, 2);
  EXPECT_EQ(seen.groups[0].referenced, 4);
  EXPECT_EQ(seen.groups[0].stranded, 2);
  EXPECT_EQ(seen.groups[1].referenced, 2);
  EXPECT_EQ(seen.groups[1].block_bytes, 150);
  EXPECT_EQ(seen.groups[2].pages, 0) << "there is none";
}

struct Fault {
  const char* name;
  Invariant invariant;
  void (*plant)(PagePool& pages);
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

const Fault kFaults[] = {
    {"a_free_page_is_lost", Invariant::pages_balance, PagePoolProbe::lose_free_page},
    {"a_page_is_counted_twice", Invariant::counts_balance, PagePoolProbe::count_page_twice},
    {"a_fenced_block_is_not_counted", Invariant::group_counts, PagePoolProbe::forget_fence},
    {"a_group_counts_another_state", Invariant::group_counts,
     PagePoolProbe::move_count_between_groups},
    {"a_held_slot_is_free", Invariant::state_counts, PagePoolProbe::free_held_slot},
    {"an_empty_page_stays_in_its_group", Invariant::page_lists, PagePoolProbe::keep_empty_page},
    {"a_carved_page_is_on_the_free_list", Invariant::page_lists,
     PagePoolProbe::list_carved_page_as_free},
    {"a_page_with_free_slots_is_in_no_list", Invariant::page_lists, PagePoolProbe::break_link},
    {"a_page_that_can_be_turned_is_in_no_list", Invariant::page_lists, PagePoolProbe::leave_queue},
};

class GroupAuditOf : public ::testing::TestWithParam<Fault> {};
INSTANTIATE_TEST_SUITE_P(Faults, GroupAuditOf, ::testing::ValuesIn(kFaults),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(GroupAuditOf, IsFoundWithinAPassAndSaidOnce) {
  GroupedPool pool;
  pool.add(16);
  const SequenceId cached = pool.add(8);
  std::array<BlockId, 2> ids;
  ASSERT_EQ(pool.tables.blocks_of(cached, ids, 0).value(), 2);
  for (const BlockId id : ids) {
    ASSERT_OK(pool.manager.set_content(id, pool.manager.generation(id), BlockContent::published));
  }
  ASSERT_OK(pool.tables.destroy(cached));
  ASSERT_EQ(pool.manager.page_stats().evictable, 1);
  for (int i = 0; i < 20; ++i) ASSERT_OK(pool.publish().audit.failure);
  ASSERT_GE(pool.publisher.snapshot().audit.passes, 2U);
  const LogCapture log(LogLevel::critical);
  GetParam().plant(*parts_of(pool.manager).pool.pages());
  for (int i = 0; i < 10; ++i) pool.publish();
  const AuditProgress found = pool.publisher.snapshot().audit;
  EXPECT_EQ(found.failure.code, StatusCode::invariant_violated);
  EXPECT_EQ(found.failure.native, static_cast<std::int32_t>(GetParam().invariant))
      << describe(found.failure);
  ASSERT_EQ(log.lines().size(), 1U);
  EXPECT_NE(log.lines()[0].text.find(describe(found.failure)), std::string::npos);
}

}  // namespace
}  // namespace test
}  // namespace kvarena
