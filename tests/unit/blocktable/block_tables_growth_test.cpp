// Growth, forks, copy-on-write, truncation, views: what the calls do when they succeed.

#include "block_tables_fixture.hpp"

namespace kvarena::test {
namespace {

class TableGrowthTest : public BlockTablesTest {
 protected:
  static std::vector<std::int64_t> slots(const Result<AppendResult>& result) {
    return {result->slots.begin(), result->slots.end()};
  }
};

using Slots = std::vector<std::int64_t>;

TEST_F(TableGrowthTest, SlotsAreBlockTimesSizePlusOffset) {
  create(8, 4);
  const SequenceId a = sequence(0);
  const Result<AppendResult> first = grow(a, 6);
  ASSERT_OK(first);
  EXPECT_EQ(slots(first), (Slots{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(first->new_blocks, 2);
  const SequenceId b = sequence(1);
  EXPECT_EQ(blocks(b), (Numbers{2}));
  const std::vector<AppendDemand> demands{{b, 4}, {a, 3}};
  const Result<AppendResult> both = tables().append(demands);
  EXPECT_EQ(slots(both), (Slots{9, 10, 11, 12, 6, 7, 16}));
  EXPECT_EQ(blocks(a), (Numbers{0, 1, 4}));
  EXPECT_EQ(*tables().slot_of(a, 8), 16);
  EXPECT_EQ(tables().lookup(a, 2)->value, 4);
}

TEST_F(TableGrowthTest, ADecodeStepGrowsEachByOne) {
  create(8, 2);
  const SequenceId a = sequence(2);
  const SequenceId b = sequence(1);
  const std::vector<SequenceId> ids{a, b};
  const Result<AppendResult> step = tables().append_one_each(ids);
  EXPECT_EQ(slots(step), (Slots{4, 3}));
  EXPECT_EQ(step->new_blocks, 1);
  EXPECT_EQ(length(a), 3);
  EXPECT_EQ(length(b), 2);
}

TEST_F(TableGrowthTest, NoTokensIsNoChange) {
  create(8, 4);
  const SequenceId a = sequence(3);
  const Result<AppendResult> nothing = grow(a, 0);
  ASSERT_OK(nothing);
  EXPECT_TRUE(nothing->slots.empty());
  EXPECT_EQ(nothing->new_blocks, 0);
  EXPECT_OK(tables().append({}));
}

TEST_F(TableGrowthTest, ExactlyCeilOfLengthOverSizeBlocks) {
  for (const std::int32_t block_size : {1, 3, 16}) {
    create(200, block_size);
    for (std::int32_t length = 0; length <= 70; length += 5) {
      const SequenceId s = sequence(length);
      EXPECT_EQ(tables().info(s)->num_blocks, (length + block_size - 1) / block_size);
      EXPECT_EQ(tables().info(s)->waste_tokens,
                (length + block_size - 1) / block_size * block_size - length);
      ASSERT_OK(tables().destroy(s));
    }
    tables_.reset();
  }
}

TEST_F(TableGrowthTest, AForkSharesAndWhoWritesFirstCopies) {
  create(8, 4);
  const SequenceId parent = sequence(6);
  const SequenceId child = tables().fork(parent, 6).value();
  EXPECT_EQ(blocks(child), (Numbers{0, 1}));
  EXPECT_EQ(manager().reference_count(BlockId(1)), 2U);
  EXPECT_EQ(manager().stats().allocated(), 2);
  const Result<AppendResult> grown = grow(child, 1);
  ASSERT_EQ(grown->copies.size(), 1U);
  EXPECT_EQ(grown->copies[0].source, BlockId(1));
  EXPECT_EQ(grown->copies[0].target, BlockId(2));
  EXPECT_EQ(grown->new_blocks, 1);
  EXPECT_EQ(slots(grown), (Slots{10}));
  EXPECT_EQ(blocks(child), (Numbers{0, 2}));
  EXPECT_EQ(blocks(parent), (Numbers{0, 1}));
  EXPECT_TRUE(grow(parent, 1)->copies.empty()) << "nobody shares it any more";
  EXPECT_EQ(tables().stats().copies_on_write, 1U);
}

TEST_F(TableGrowthTest, FullSharedBlocksAreNeverCopied) {
  create(8, 4);
  const SequenceId parent = sequence(8);
  const SequenceId child = tables().fork(parent, 4).value();
  EXPECT_TRUE(grow(child, 1)->copies.empty());
  EXPECT_TRUE(grow(parent, 1)->copies.empty());
  EXPECT_EQ(blocks(child)[0], blocks(parent)[0]);
  EXPECT_NE(blocks(child)[1], blocks(parent)[1]);
}

TEST_F(TableGrowthTest, AForkInsideAFullBlockOfTheParentCopies) {
  create(8, 4);
  const SequenceId parent = sequence(8);
  const SequenceId child = tables().fork(parent, 6).value();
  EXPECT_EQ(length(child), 6);
  const Result<AppendResult> grown = grow(child, 1);
  ASSERT_EQ(grown->copies.size(), 1U);
  EXPECT_EQ(grown->copies[0].source.value, 1);
  EXPECT_EQ(slots(grown), (Slots{2 * 4 + 2}));
}

TEST_F(TableGrowthTest, TruncatingIntoASharedBlockCopiesOnTheNextWrite) {
  create(8, 4);
  const SequenceId parent = sequence(8);
  const SequenceId child = tables().fork(parent, 8).value();
  ASSERT_OK(tables().truncate(parent, 7));
  const Result<AppendResult> grown = grow(parent, 1);
  ASSERT_EQ(grown->copies.size(), 1U);
  EXPECT_EQ(blocks(child), (Numbers{0, 1}));
  EXPECT_EQ(blocks(parent), (Numbers{0, 2}));
}

TEST_F(TableGrowthTest, SharersOfOneCallCopyInOrderUntilOneIsLeft) {
  create(10, 4);
  const SequenceId a = sequence(2);
  const SequenceId b = tables().fork(a, 2).value();
  const SequenceId c = tables().fork(a, 1).value();
  const std::vector<AppendDemand> demands{{c, 1}, {a, 4}, {b, 1}};
  const Result<AppendResult> grown = tables().append(demands);
  ASSERT_EQ(grown->copies.size(), 2U);
  EXPECT_EQ(grown->copies[0].target.value, 1) << "c's copy";
  EXPECT_EQ(grown->copies[1].target.value, 2) << "a's copy, before its new block";
  EXPECT_EQ(blocks(a), (Numbers{2, 3}));
  EXPECT_EQ(blocks(b), (Numbers{0}));
  EXPECT_EQ(slots(grown), (Slots{5, 10, 11, 12, 13, 2}));
}

TEST_F(TableGrowthTest, AFailedCopyLeavesTheSharing) {
  create(1, 4);
  const SequenceId a = sequence(2);
  const SequenceId b = tables().fork(a, 2).value();
  EXPECT_REFUSED(grow(b, 1), exhausted, block);
  ASSERT_OK(tables().destroy(a));
  EXPECT_TRUE(grow(b, 1)->copies.empty());
}

TEST_F(TableGrowthTest, RollingBackOneTokenReusesItsSlot) {
  create(4, 4);
  const SequenceId a = sequence(6);
  ASSERT_OK(tables().truncate(a, 5));
  EXPECT_EQ(slots(grow(a, 1)), (Slots{5}));
  ASSERT_OK(tables().truncate(a, 4));
  EXPECT_EQ(tables().info(a)->num_blocks, 1);
  EXPECT_EQ(manager().state(BlockId(1)), BlockState::free);
  ASSERT_OK(tables().truncate(a, 0));
  EXPECT_EQ(tables().info(a)->num_blocks, 0);
  EXPECT_EQ(manager().stats().free, 4);
}

TEST_F(TableGrowthTest, TruncateGivesReservedCapacityBack) {
  create(8, 4);
  const SequenceId a = sequence(5);
  ASSERT_OK(tables().reserve_capacity(a, 20));
  EXPECT_EQ(tables().info(a)->num_blocks, 5);
  EXPECT_EQ(length(a), 5);
  EXPECT_EQ(grow(a, 10)->new_blocks, 0);
  ASSERT_OK(tables().truncate(a, 15));
  EXPECT_EQ(tables().info(a)->num_blocks, 4);
}

TEST_F(TableGrowthTest, DestroyReleasesTheLastBlockFirst) {
  create(4, 1);
  const SequenceId a = sequence(4);
  ASSERT_OK(tables().destroy(a));
  EXPECT_EQ(blocks(sequence(4)), (Numbers{0, 1, 2, 3}));
}

TEST_F(TableGrowthTest, ATicketKeepsDestroyedBlocksBack) {
  create(4, 4);
  const SequenceId a = sequence(16);
  const Ticket t = manager().open_ticket().value();
  ASSERT_OK(tables().destroy(a, t));
  EXPECT_EQ(manager().stats().fenced, 4);
  const SequenceId b = sequence(0);
  EXPECT_REFUSED(grow(b, 1), exhausted, block);
  ASSERT_OK(manager().retire(t));
  EXPECT_OK(grow(b, 1));
}

TEST_F(TableGrowthTest, APromiseIsUsedUpByGrowth) {
  create(4, 4);
  const SequenceId a = sequence(4);
  const SequenceId b = sequence(0);
  ASSERT_OK(tables().promise_capacity(a, 12));
  EXPECT_EQ(manager().stats().reserved, 2);
  ASSERT_OK(grow(b, 4));
  EXPECT_REFUSED(grow(b, 1), exhausted, block);
  ASSERT_OK(grow(a, 8));
  EXPECT_EQ(manager().stats().reserved, 0);
}

TEST_F(TableGrowthTest, AdmissionLeavesTheWatermark) {
  create({.num_blocks = 4, .watermark_blocks = 2}, {.block_size_tokens = 4});
  const SequenceId a = sequence(0);
  EXPECT_REFUSED(grow(a, 9, Urgency::admission), exhausted, block);
  EXPECT_OK(grow(a, 8, Urgency::admission));
  EXPECT_OK(grow(a, 8, Urgency::growth));
}

TEST_F(TableGrowthTest, ViewsShowTablesLengthsAndCounts) {
  create({.num_blocks = 1000}, {.block_size_tokens = 2, .max_sequences = 8});
  const SequenceId a = sequence(700);  // three pages of entries
  const SequenceId b = sequence(0);
  const SequenceId c = sequence(3);
  ASSERT_OK(tables().reserve_capacity(c, 100));
  const std::vector<SequenceId> ids{c, a, b};
  const Result<BatchView> view = tables().view(ids);
  ASSERT_OK(view);
  ASSERT_EQ(view->num_rows, 3);
  EXPECT_EQ(view->seq_lens[0], 3);
  EXPECT_EQ(view->num_blocks[0], 2) << "reserved capacity is not shown";
  EXPECT_EQ(view->seq_lens[1], 700);
  EXPECT_EQ(view->num_blocks[1], 350);
  EXPECT_EQ(view->num_blocks[2], 0);
  const Numbers expected = blocks(a);
  for (std::int32_t j = 0; j < 350; ++j) {
    EXPECT_EQ(view->tables.block(1, j).value, expected[static_cast<std::size_t>(j)]);
  }
  EXPECT_OK(tables().view({}));
}

TEST_F(TableGrowthTest, LongTablesGrowShrinkAndGiveTheirPagesBack) {
  create({.num_blocks = 40'000}, {.block_size_tokens = 1, .max_sequences = 4});
  const SequenceId a = sequence(20'000);
  EXPECT_EQ(tables().lookup(a, 19'999)->value, 19'999);
  EXPECT_EQ(tables().lookup(a, 12'345)->value, 12'345);
  for (const std::int64_t cut : {16'385, 16'384, 16'383, 200, 129, 128, 127, 1}) {
    ASSERT_OK(tables().truncate(a, cut));
    EXPECT_EQ(tables().lookup(a, cut - 1)->value, cut - 1);
    ASSERT_OK(tables().check_invariants());
  }
  EXPECT_EQ(tables().stats().pages_used, 1);
  ASSERT_OK(tables().destroy(a));
  EXPECT_EQ(tables().stats().pages_used, 0);
}

TEST_F(TableGrowthTest, StatsAddUp) {
  create(20, 4);
  const SequenceId a = sequence(6);
  const SequenceId b = tables().fork(a, 6).value();
  const TableStats s = tables().stats();
  EXPECT_EQ(s.sequences, 2);
  EXPECT_EQ(s.tokens, 12);
  EXPECT_EQ(s.entries, 4) << "a shared block counts each time";
  EXPECT_EQ(s.waste_tokens, 4);
  EXPECT_EQ(s.pages_used, 2);
  EXPECT_EQ(s.sequences_ever, 2U);
  const std::vector<SequenceId> all = tables().sequences();
  EXPECT_EQ(all.size(), 2U);
  EXPECT_NE(a, b);
}

TEST_F(TableGrowthTest, HoldersAreReportedAsSequences) {
  create(8, 4);
  const SequenceId a = tables().create_sequence({.since_ns = 5, .deadline_ns = 9}).value();
  ASSERT_OK(grow(a, 5));
  const HolderReport report = manager().holder(tables().info(a)->holder).value();
  EXPECT_EQ(report.number, a.value);
  EXPECT_EQ(report.owner, a.value);
  EXPECT_EQ(report.purpose, "sequence");
  EXPECT_EQ(report.references, 2);
  EXPECT_EQ(report.since_ns, 5);
  EXPECT_EQ(report.deadline_ns, 9);
}

TEST_F(TableGrowthTest, TablesCanBeMovedAndGiveEverythingBackWhenTheyEnd) {
  create(8, 4);
  const SequenceId a = sequence(9);
  BlockTables moved = std::move(*tables_);
  tables_.reset();
  EXPECT_EQ(moved.info(a)->num_blocks, 3);
  BlockTables other = BlockTables::create(manager(), {.block_size_tokens = 4}).value();
  ASSERT_OK(other.create_sequence());
  other = std::move(moved);
  EXPECT_EQ(other.info(a)->length_tokens, 9);
  EXPECT_EQ(manager().stats().holders, 1) << "the overwritten tables gave theirs back";
  { const BlockTables end = std::move(other); }
  EXPECT_EQ(manager().stats().free, 8);
  EXPECT_EQ(manager().stats().holders, 0);
}

TEST_F(TableGrowthTest, IdsOfSequencesAreNeverReused) {
  create(2, 4);
  std::vector<SequenceId> seen;
  for (int i = 0; i < 500; ++i) {
    const SequenceId id = sequence(1);
    EXPECT_EQ(std::find(seen.begin(), seen.end(), id), seen.end());
    seen.push_back(id);
    ASSERT_OK(tables().destroy(id));
  }
}

}  // namespace
}  // namespace kvarena::test
