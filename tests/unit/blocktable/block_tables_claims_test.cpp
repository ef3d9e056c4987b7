// Bytes that somebody was promised are not rewritten: whoever has a claim on a partly filled block
// makes the next append copy it, and an append can be taken back.

#include "unit/blocktable/block_tables_fixture.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvarena::test {
namespace {

class TableClaims : public BlockTablesTest {
 protected:
  void SetUp() override { create(8, 4); }
  /// A handle of a sequence's block.
  BlockId block(SequenceId id, std::int64_t index) { return tables().lookup(id, index).value(); }
  Status publish(BlockId id) {
    return manager().set_content(id, manager().generation(id), BlockContent::published);
  }
};

TEST_F(TableClaims, AFencedReaderOfAnOldBranchKeepsItsBytes) {
  const SequenceId old = sequence(4);
  const SequenceId regenerated = *tables().fork(old, 2);
  const Ticket ticket = *manager().open_ticket();
  ASSERT_OK(tables().destroy(old, ticket));
  const auto grown = grow(regenerated, 1);
  ASSERT_OK(grown);
  ASSERT_EQ(grown->copies.size(), 1U);
  EXPECT_EQ(grown->copies[0].source, BlockId(0));
  EXPECT_EQ(grown->slots[0], 1 * 4 + 2);
  EXPECT_EQ(manager().state(BlockId(0)), BlockState::fenced);
  ASSERT_OK(manager().retire(ticket));
  EXPECT_EQ(manager().state(BlockId(0)), BlockState::free);
}

TEST_F(TableClaims, OnceTheTicketHasRetiredNothingIsCopied) {
  const SequenceId old = sequence(4);
  const SequenceId regenerated = *tables().fork(old, 2);
  const Ticket ticket = *manager().open_ticket();
  ASSERT_OK(tables().destroy(old, ticket));
  ASSERT_OK(manager().retire(ticket));
  const auto grown = grow(regenerated, 1);
  ASSERT_OK(grown);
  EXPECT_TRUE(grown->copies.empty());
  EXPECT_EQ(grown->slots[0], 2);
}

TEST_F(TableClaims, EverySharerCopiesAFencedBlock) {
  const SequenceId reader = sequence(3);
  const SequenceId a = *tables().fork(reader, 3);
  const SequenceId b = *tables().fork(reader, 2);
  const Ticket ticket = *manager().open_ticket();
  ASSERT_OK(tables().destroy(reader, ticket));
  const std::vector<SequenceId> both{a, b};
  const auto grown = tables().append_one_each(both);
  ASSERT_OK(grown);
  EXPECT_EQ(grown->copies.size(), 2U);
}

TEST_F(TableClaims, TokensCutAgainstATicketStayInTheBlockThatIsKept) {
  const SequenceId id = sequence(7);
  const Ticket ticket = *manager().open_ticket();
  ASSERT_OK(tables().truncate(id, 5, ticket));
  EXPECT_EQ(manager().stats().fence_entries, 1);
  const auto grown = grow(id, 1);
  ASSERT_OK(grown);
  ASSERT_EQ(grown->copies.size(), 1U) << "slots 5 and 6 may still be read";
  EXPECT_EQ(grown->copies[0].source, BlockId(1));
  ASSERT_OK(manager().retire(ticket));
  EXPECT_OK(grow(id, 1));
}

TEST_F(TableClaims, ACutWithoutATicketWritesInPlace) {
  const SequenceId id = sequence(7);
  ASSERT_OK(tables().truncate(id, 5));
  const auto grown = grow(id, 1);
  ASSERT_OK(grown);
  EXPECT_TRUE(grown->copies.empty());
}

TEST_F(TableClaims, APublishedBlockIsNotRewritten) {
  const SequenceId id = sequence(8);
  const BlockId cached = block(id, 1);
  const Generation generation = manager().generation(cached);
  ASSERT_OK(publish(cached));
  ASSERT_OK(tables().truncate(id, 6));
  const auto grown = grow(id, 2);
  ASSERT_OK(grown);
  ASSERT_EQ(grown->copies.size(), 1U);
  EXPECT_EQ(grown->copies[0].source, cached);
  EXPECT_EQ(manager().state(cached), BlockState::evictable) << "kept for whoever finds it";
  const HolderId finder = *manager().register_holder({.purpose = "finder"});
  ASSERT_OK(manager().retain(finder, std::span(&cached, 1), std::span(&generation, 1)));
  ASSERT_OK(manager().release(finder, std::span(&cached, 1), std::span(&generation, 1)));
}

TEST_F(TableClaims, ABlockThatIsBeingWrittenIsWrittenInPlace) {
  const SequenceId id = sequence(5);
  const BlockId tail = block(id, 1);
  const Generation generation = manager().generation(tail);
  ASSERT_OK(manager().set_content(tail, generation, BlockContent::being_written));
  const auto grown = grow(id, 1);
  ASSERT_OK(grown);
  EXPECT_TRUE(grown->copies.empty());
  ASSERT_OK(publish(tail));
  EXPECT_EQ(grow(id, 1)->copies.size(), 1U);
}

TEST_F(TableClaims, ARefusedAppendForgetsNoClaim) {
  const SequenceId id = sequence(4);
  ASSERT_OK(publish(block(id, 0)));
  EXPECT_FAILS(grow(id, 100), exhausted, block);
  ASSERT_OK(tables().truncate(id, 3));
  EXPECT_EQ(grow(id, 1)->copies.size(), 1U);
}

// ---- sharing ------------------------------------------------------------------------------------

TEST(TableSharing, TablesAndFencesAreLargeEnoughForASharedPrefix) {
  constexpr std::int64_t kBlocks = 65536;
  auto manager = BlockManager::create({.num_blocks = kBlocks}).value();
  auto tables = BlockTables::create(manager, {.max_sequences = 1024}).value();
  const SequenceId prefix = *tables.create_sequence();
  const AppendDemand demand{prefix, 32768};  // 2,048 blocks
  ASSERT_OK(tables.append(std::span(&demand, 1)));
  std::vector<SequenceId> forks;
  for (int i = 0; i < 1023; ++i) {
    const Result<SequenceId> fork = tables.fork(prefix, 32768);
    ASSERT_OK(fork) << "fork " << i;
    forks.push_back(*fork);
  }
  const Ticket ticket = *manager.open_ticket();
  ASSERT_OK(tables.destroy_many(forks, ticket));
  ASSERT_OK(manager.retire(ticket));
  EXPECT_EQ(manager.stats().free, kBlocks - 2048);
}

// ---- taking back --------------------------------------------------------------------------------

class TableUndo : public BlockTablesTest {
 protected:
  void SetUp() override {
    create({.num_blocks = 12}, {.block_size_tokens = 4, .max_sequences = 8, .can_undo = true});
  }
};

TEST_F(TableUndo, GrowthIsTakenBackToTheBlock) {
  const SequenceId a = sequence(3);
  const SequenceId b = sequence(4);
  tables().settle_append();
  const auto before = picture();
  const std::vector<AppendDemand> demands{{a, 10}, {b, 1}};
  const auto first = tables().append(demands);
  ASSERT_OK(first);
  const std::vector<std::int64_t> slots(first->slots.begin(), first->slots.end());
  ASSERT_OK(tables().undo_append(true));
  EXPECT_EQ(std::get<1>(picture()), std::get<1>(before));
  const auto again = tables().append(demands);
  ASSERT_OK(again);
  EXPECT_EQ(std::vector<std::int64_t>(again->slots.begin(), again->slots.end()), slots)
      << "the free blocks are in the order of before";
  EXPECT_OK(tables().check_invariants());
}

TEST_F(TableUndo, ACopyThatWasNotMadeGivesWayToItsSource) {
  const SequenceId a = sequence(3);
  const SequenceId b = *tables().fork(a, 3);
  const Numbers before = blocks(b);
  ASSERT_OK(tables().append_one_each(std::vector{a, b}));
  EXPECT_NE(blocks(a), blocks(b));
  EXPECT_OK(tables().check_invariants()) << "the source is still held";
  ASSERT_OK(tables().undo_append(false));
  EXPECT_EQ(blocks(a), before);
  EXPECT_EQ(blocks(b), before);
  EXPECT_EQ(manager().reference_count(BlockId(before[0])), 2U);
}

TEST_F(TableUndo, ACopyThatWasMadeStays) {
  const SequenceId a = sequence(3);
  const SequenceId b = *tables().fork(a, 3);
  ASSERT_OK(tables().append_one_each(std::vector{a, b}));
  const Numbers copied = blocks(a);
  ASSERT_OK(tables().undo_append(true));
  EXPECT_EQ(blocks(a), copied);
  EXPECT_EQ(length(a), 3);
  EXPECT_EQ(manager().stats().references, 2);
}

TEST_F(TableUndo, SequencesThatEndMeanwhileTakeWhatWasKeptWithThem) {
  const SequenceId a = sequence(3);
  const SequenceId b = *tables().fork(a, 3);
  ASSERT_OK(tables().append_one_each(std::vector{a, b}));
  const Ticket ticket = *manager().open_ticket();
  ASSERT_OK(tables().destroy(a, ticket));
  EXPECT_EQ(manager().stats().fence_entries, 2) << "its copy and the block it copied";
  EXPECT_OK(tables().check_invariants());
  ASSERT_OK(tables().undo_append(false));
  EXPECT_EQ(length(b), 3);
  ASSERT_OK(manager().retire(ticket));
}

TEST_F(TableUndo, OnlyOnceAndOnlyTheLastAppend) {
  const SequenceId a = sequence(3);
  ASSERT_OK(tables().undo_append(true));
  EXPECT_EQ(length(a), 0);
  EXPECT_FAILS(tables().undo_append(true), failed_precondition, sequence);
  ASSERT_OK(grow(a, 1));
  tables().settle_append();
  EXPECT_FAILS(tables().undo_append(true), failed_precondition, sequence);
  auto plain_manager = BlockManager::create({.num_blocks = 4}).value();
  auto plain = BlockTables::create(plain_manager, {}).value();
  const SequenceId there = *plain.create_sequence();
  ASSERT_OK(plain.append_one_each(std::span(&there, 1)));
  EXPECT_FAILS(plain.undo_append(true), failed_precondition, sequence);
}

TEST_F(TableUndo, APromiseThatACopyUsedComesBackThoughNothingIsSpare) {
  auto small = BlockManager::create({.num_blocks = 2}).value();
  auto its = BlockTables::create(small, {.block_size_tokens = 4, .can_undo = true}).value();
  const SequenceId s = *its.create_sequence();
  ASSERT_OK(its.append_one_each(std::span(&s, 1)));
  ASSERT_OK(its.promise_capacity(s, 8));
  const SequenceId other = *its.fork(s, 1);
  ASSERT_OK(its.append_one_each(std::span(&s, 1)));
  EXPECT_EQ(small.stats().reserved, 0);
  ASSERT_OK(its.undo_append(false));
  EXPECT_EQ(small.stats().reserved, 1);
  EXPECT_EQ(small.stats().exhaustions, 0U);
  ASSERT_OK(its.destroy(other));
}

TEST_F(TableUndo, PromisesComeBack) {
  const SequenceId a = sequence(4);
  tables().settle_append();
  ASSERT_OK(tables().promise_capacity(a, 16));
  EXPECT_EQ(manager().stats().reserved, 3);
  ASSERT_OK(grow(a, 8));
  EXPECT_EQ(manager().stats().reserved, 1);
  ASSERT_OK(tables().undo_append(true));
  EXPECT_EQ(manager().stats().reserved, 3);
}

}  // namespace
}  // namespace kvarena::test
