// What a mirror of the tables is told: every changed entry that holds tokens, and no other.

#include "block_tables_fixture.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {
namespace {

class BlockTablesMirror : public test::BlockTablesTest {
 protected:
  void SetUp() override {
    create({.num_blocks = 600}, {.block_size_tokens = 2, .max_sequences = 8, .report_rows = true});
  }
  /// Appends; the row of that one demand.
  AppendedRow row(SequenceId id, std::int32_t tokens) {
    const Result<AppendResult> grown = grow(id, tokens);
    EXPECT_OK(grown);
    EXPECT_EQ(grown->rows.size(), 1U);
    return grown->rows[0];
  }
  /// What the mirror is given.
  Numbers take(std::int32_t slot) {
    std::vector<BlockId> ids(static_cast<std::size_t>(tables().changed_blocks(slot)));
    EXPECT_EQ(tables().mirror_changes(slot, ids), static_cast<std::int32_t>(ids.size()));
    Numbers numbers;
    for (const BlockId id : ids) numbers.push_back(id.value);
    return numbers;
  }
};

TEST_F(BlockTablesMirror, RowsSayPlaceLengthAndChanges) {
  const SequenceId a = sequence(0);
  const SequenceId b = sequence(0);
  const std::vector<AppendDemand> demands{{b, 5}, {a, 0}};
  const Result<AppendResult> grown = tables().append(demands);
  ASSERT_OK(grown);
  ASSERT_EQ(grown->rows.size(), 2U);
  EXPECT_NE(grown->rows[0].slot, grown->rows[1].slot);
  EXPECT_EQ(grown->rows[0].length_tokens, 5);
  EXPECT_EQ(grown->rows[0].num_new_tokens, 5);
  EXPECT_EQ(grown->rows[0].num_changed_blocks, 3);
  EXPECT_EQ(grown->rows[1].length_tokens, 0);
  EXPECT_EQ(grown->rows[1].num_new_tokens, 0);
  EXPECT_EQ(grown->rows[1].num_changed_blocks, 0);
  const AppendedRow again = row(b, 2);
  EXPECT_EQ(again.slot, grown->rows[0].slot) << "for its whole life";
  EXPECT_EQ(again.num_changed_blocks, 4) << "nothing has been mirrored yet";
  EXPECT_EQ(take(again.slot), blocks(b));
}

TEST_F(BlockTablesMirror, TablesThatNobodyMirrorsReportNoRows) {
  BlockManager pool = BlockManager::create({.num_blocks = 4}).value();
  BlockTables plain = BlockTables::create(pool, {.block_size_tokens = 2}).value();
  const AppendDemand one{*plain.create_sequence(), 3};
  EXPECT_TRUE(plain.append(std::span(&one, 1))->rows.empty());
}

TEST_F(BlockTablesMirror, OnlyWhatIsNewComesOverMorePagesThanOne) {
  const SequenceId id = sequence(0);
  const std::int32_t page_tokens = BlockTables::kPageEntries * 2;
  const std::int32_t slot = row(id, 2 * page_tokens + 3).slot;
  EXPECT_EQ(take(slot), blocks(id));
  EXPECT_EQ(row(id, 1).num_changed_blocks, 0) << "within the last block";
  EXPECT_EQ(row(id, 3).num_changed_blocks, 2);
  const Numbers all = blocks(id);
  EXPECT_EQ(take(slot), Numbers(all.end() - 2, all.end()));
  EXPECT_TRUE(take(slot).empty());
}

TEST_F(BlockTablesMirror, ReservedBlocksComeWhenTokensReachThem) {
  const SequenceId id = sequence(0);
  const std::int32_t slot = row(id, 1).slot;
  EXPECT_EQ(take(slot).size(), 1U);
  ASSERT_OK(tables().reserve_capacity(id, 20));
  EXPECT_EQ(tables().changed_blocks(slot), 0);
  EXPECT_EQ(row(id, 4).num_changed_blocks, 2);
  const Numbers all = blocks(id);
  EXPECT_EQ(take(slot), Numbers(all.begin() + 1, all.begin() + 3));
}

TEST_F(BlockTablesMirror, ACutAndRegrownTableIsSentAgainFromTheCut) {
  const SequenceId id = sequence(0);
  const std::int32_t slot = row(id, 9).slot;
  EXPECT_EQ(take(slot).size(), 5U);
  ASSERT_OK(tables().truncate(id, 5));
  const SequenceId other = sequence(4);  // takes what was released
  EXPECT_EQ(row(id, 4).num_changed_blocks, 2);
  const Numbers all = blocks(id);
  EXPECT_EQ(take(slot), Numbers(all.begin() + 3, all.end()));
  ASSERT_OK(tables().truncate(id, 8));
  EXPECT_EQ(row(id, 1).num_changed_blocks, 1) << "a block released and taken again";
  ASSERT_OK(tables().destroy(other));
}

TEST_F(BlockTablesMirror, TokensTakenBackWithinABlockChangeNothing) {
  const SequenceId id = sequence(0);
  const std::int32_t slot = row(id, 4).slot;
  EXPECT_EQ(take(slot).size(), 2U);
  ASSERT_OK(tables().truncate(id, 3));
  EXPECT_EQ(row(id, 1).num_changed_blocks, 0);
}

TEST_F(BlockTablesMirror, AForkIsNewAndACopyOnWriteIsSentToWhoCopies) {
  const SequenceId parent = sequence(0);
  const std::int32_t slot = row(parent, 5).slot;
  EXPECT_EQ(take(slot).size(), 3U);
  const SequenceId child = tables().fork(parent, 5).value();
  const AppendedRow of_parent = row(parent, 1);
  EXPECT_EQ(of_parent.num_changed_blocks, 1);
  EXPECT_EQ(take(slot), Numbers{blocks(parent).back()});
  const AppendedRow of_child = row(child, 1);
  EXPECT_NE(of_child.slot, slot);
  EXPECT_EQ(take(of_child.slot), blocks(child));
}

TEST_F(BlockTablesMirror, ASlotUsedAgainBeginsWithNothing) {
  const SequenceId first = sequence(0);
  const std::int32_t slot = row(first, 7).slot;
  EXPECT_EQ(take(slot).size(), 4U);
  ASSERT_OK(tables().destroy(first));
  EXPECT_EQ(tables().changed_blocks(slot), 0) << "nobody is there";
  EXPECT_EQ(tables().mirror_changes(slot, {}), 0);
  const AppendedRow second = row(sequence(0), 3);
  ASSERT_EQ(second.slot, slot) << "last freed first";
  EXPECT_EQ(second.num_changed_blocks, 2);
}

TEST_F(BlockTablesMirror, SequencesWithACommonBeginningAreCounted) {
  const SequenceId parent = sequence(9);
  const SequenceId stranger = sequence(9);
  std::vector<AppendDemand> demands{{parent, 1}, {stranger, 1}};
  const auto sharers = [&](std::int32_t index) {
    const Result<AppendResult> grown = tables().append(demands);
    EXPECT_OK(grown);
    return tables().most_sharers(grown->rows, index);
  };
  EXPECT_EQ(sharers(0), 0) << "no block of the pool has two references";
  const SequenceId twin = tables().fork(parent, 8).value();
  const SequenceId third = tables().fork(parent, 4).value();
  EXPECT_EQ(sharers(0), 0) << "the forks are not in the step";
  demands.push_back({twin, 1});
  demands.push_back({third, 1});
  EXPECT_EQ(sharers(0), 3);
  EXPECT_EQ(sharers(1), 3);
  EXPECT_EQ(sharers(2), 2) << "the third left after four tokens";
  EXPECT_EQ(sharers(4), 0) << "the twin has a block of its own there";
  EXPECT_EQ(sharers(400), 0) << "no table is so long";
  EXPECT_EQ(sharers(-1), 0);
  EXPECT_EQ(sharers(0), 3) << "the same every time";
  ASSERT_OK(tables().destroy(twin));
  ASSERT_OK(tables().destroy(third));
  demands.resize(2);
  EXPECT_EQ(sharers(0), 0);
}

TEST_F(BlockTablesMirror, AFailedAppendChangesNothing) {
  const SequenceId id = sequence(0);
  const std::int32_t slot = row(id, 3).slot;
  EXPECT_EQ(take(slot).size(), 2U);
  const SequenceId child = tables().fork(id, 3).value();
  EXPECT_FAILS(grow(id, 5000), exhausted, block);
  EXPECT_EQ(tables().changed_blocks(slot), 0);
  ASSERT_OK(tables().destroy(child));
}

TEST_F(BlockTablesMirror, WhatDoesNotFitIsNotTaken) {
  const SequenceId id = sequence(0);
  const std::int32_t slot = row(id, 9).slot;
  std::vector<BlockId> four(4);
  EXPECT_EQ(tables().mirror_changes(slot, four), 0);
  EXPECT_EQ(take(slot).size(), 5U);
}

TEST_F(BlockTablesMirror, WhatWasLostComesAgain) {
  const SequenceId id = sequence(0);
  const std::int32_t slot = row(id, 9).slot;
  EXPECT_EQ(take(slot).size(), 5U);
  tables().unmirror(slot, 7);
  EXPECT_EQ(tables().changed_blocks(slot), 0) << "it had five";
  tables().unmirror(slot, 3);
  EXPECT_EQ(row(id, 1).num_changed_blocks, 2);
  for (const std::int32_t nowhere : {-1, 8, 1 << 30}) {
    tables().unmirror(nowhere, 0);
    EXPECT_EQ(tables().changed_blocks(nowhere), 0);
  }
}

}  // namespace
}  // namespace kvarena
