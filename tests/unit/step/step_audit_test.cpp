// The audit behind a publisher: how it goes round, and what it finds. Corruption is planted in the
// manager's own tables.

#include "support/log_capture.hpp"
#include "support/manager_access.hpp"
#include "support/status_matchers.hpp"
#include "unit/step/step_publisher_fixture.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

namespace kvarena::test {
namespace {

TEST(StepAudit, GoesRoundInSlices) {
  PublishedPool pool(10, 4);  // create has checked 4
  EXPECT_EQ(pool.publisher.snapshot().audit.blocks_checked, 4U);
  EXPECT_EQ(pool.publish().audit.blocks_checked, 8U);
  AuditProgress audit = pool.publish().audit;
  EXPECT_EQ(audit.blocks_checked, 10U) << "the last slice of a pass is short";
  EXPECT_EQ(audit.passes, 1U);
  for (int i = 0; i < 3 * 5; ++i) audit = pool.publish().audit;
  EXPECT_EQ(audit.blocks_checked, 60U);
  EXPECT_EQ(audit.passes, 6U);
  EXPECT_OK(audit.failure);
}

TEST(StepAudit, ASlicePastThePoolIsThePool) {
  PublishedPool pool(10, 1'000'000);
  EXPECT_EQ(pool.publisher.snapshot().audit.blocks_checked, 10U);
  EXPECT_EQ(pool.publish().audit.passes, 2U);
}

TEST(StepAudit, NoSliceNoAudit) {
  PublishedPool pool(10, 0);
  ++parts_of(pool.manager).references;
  --parts_of(pool.manager).pool.mutable_counts().free;
  const AuditProgress audit = pool.publish().audit;
  EXPECT_EQ(audit.blocks_checked, 0U);
  EXPECT_EQ(audit.passes, 0U);
  EXPECT_OK(audit.failure);
}

using Parts = std::remove_reference_t<decltype(parts_of(std::declval<const BlockManager&>()))>;

/// One thing that goes wrong in a pool of 12 blocks: 0..2 and 3..4 held by sequences, the last of
/// them fenced too; 5 and 6 evictable; 7.. free.
struct Corruption {
  const char* name;
  Invariant invariant;
  std::function<void(Parts&)> plant;
};
std::ostream& operator<<(std::ostream& out, const Corruption& c) { return out << c.name; }

const Corruption kCorruptions[] = {
    {"a_free_block_is_not_counted", Invariant::counts_balance,
     [](Parts& m) { --m.pool.mutable_counts().free; }},
    {"a_count_is_negative", Invariant::state_counts,
     [](Parts& m) {
       m.pool.mutable_counts().free += m.pool.mutable_counts().offline + 1;
       m.pool.mutable_counts().offline = -1;
     }},
    {"a_free_word_has_bits", Invariant::state_counts,
     [](Parts& m) {
       m.pool.mutable_counts().free = 0;  // the list does not name it
       m.pool.mutable_counts().offline = 5;
       m.pool.record(BlockId(9)).word = 1;
     }},
    {"a_held_block_is_on_the_free_list", Invariant::free_list,
     [](Parts& m) { m.pool.record(BlockId(9)).word = BlockPool::kHeld | 1; }},
    {"an_evictable_block_is_not_where_its_order_says", Invariant::evictable_list,
     [](Parts& m) { m.pool.record(BlockId(5)).word = BlockPool::kPublished | 11; }},
    {"a_fence_chain_is_lost", Invariant::fence_entries,
     [](Parts& m) { m.pool.fence_head(BlockId(4)) = BlockPool::kNoFence; }},
    {"a_fence_chain_starts_outside_the_table", Invariant::fence_entries,
     [](Parts& m) { m.pool.fence_head(BlockId(4)) = 1'000'000; }},
    {"a_fence_entry_is_of_another_block", Invariant::fence_entries,
     [](Parts& m) { m.pool.fence_head(BlockId(0)) = m.pool.fence_head(BlockId(4)); }},
    {"a_block_has_more_references_than_all_holders", Invariant::holder_references,
     [](Parts& m) { m.pool.record(BlockId(1)).word += 1'000; }},
    {"references_were_lost", Invariant::holder_references, [](Parts& m) { m.references -= 2; }},
    {"more_is_promised_than_there_is", Invariant::reservations,
     [](Parts& m) { m.reserved = m.available() + 1; }},
};

class StepAuditOf : public ::testing::TestWithParam<Corruption> {};
INSTANTIATE_TEST_SUITE_P(Corruptions, StepAuditOf, ::testing::ValuesIn(kCorruptions),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(StepAuditOf, FindsItWithinAPassAndSaysSoOnce) {
  PublishedPool pool(12);
  pool.add(12);
  const SequenceId fenced = pool.add(8);
  const SequenceId cached = pool.add(8);
  for (std::int32_t i = 5; i <= 6; ++i) {
    ASSERT_OK(pool.manager.set_content(BlockId(i), pool.manager.generation(BlockId(i)),
                                       BlockContent::published));
  }
  ASSERT_OK(pool.tables.destroy(cached));
  ASSERT_OK(pool.tables.destroy(fenced, pool.manager.open_ticket().value()));
  ASSERT_EQ(pool.manager.stats().fenced, 2);
  ASSERT_EQ(pool.manager.stats().evictable, 2);
  for (int i = 0; i < 6; ++i) ASSERT_OK(pool.publish().audit.failure);
  const LogCapture log(LogLevel::critical);
  GetParam().plant(parts_of(pool.manager));
  for (int i = 0; i < 3; ++i) pool.publish();
  const AuditProgress found = pool.publisher.snapshot().audit;
  EXPECT_EQ(found.failure.code, StatusCode::invariant_violated);
  EXPECT_EQ(found.failure.native, static_cast<std::int32_t>(GetParam().invariant))
      << describe(found.failure);
  for (int i = 0; i < 9; ++i) pool.publish();
  EXPECT_EQ(pool.publisher.snapshot().audit.failure, found.failure) << "it stays";
  EXPECT_EQ(pool.publisher.snapshot().audit.blocks_checked, found.blocks_checked);
  EXPECT_EQ(pool.publisher.snapshot().step, pool.step) << "figures are published all the same";
  ASSERT_EQ(log.lines().size(), 1U);
  EXPECT_NE(log.lines()[0].text.find(describe(found.failure)), std::string::npos);
}

TEST(StepAudit, FindsTablesWithMoreEntriesThanReferences) {
  PublishedPool pool(12);
  const SequenceId sequence = pool.add(12);
  ASSERT_OK(pool.publish().audit.failure);
  // A reference goes behind the tables' back.
  const HolderId holder = pool.tables.info(sequence)->holder;
  const BlockId last = *pool.tables.lookup(sequence, 2);
  const Generation generation = pool.manager.generation(last);
  ASSERT_OK(pool.manager.release(holder, {&last, 1}, {&generation, 1}));
  ASSERT_OK(pool.manager.check_invariants());
  const Status found = pool.publish().audit.failure;
  EXPECT_FAILS(found, invariant_violated, table_page);
  EXPECT_EQ(found.required, 2U);
  EXPECT_EQ(found.available, 3U);
}

}  // namespace
}  // namespace kvarena::test
