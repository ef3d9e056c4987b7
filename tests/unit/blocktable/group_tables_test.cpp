// Tables with groups: what a table keeps, where a sequence can be cut, what is refused, and what
// explain says.

#include "kvarena/blocktable/block_tables.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

namespace kvarena {
namespace {

using Numbers = std::vector<std::int32_t>;

/// A group of all tokens, two blocks a page, and a window of 8 tokens, a block a page. Blocks of 4.
class GroupTablesTest : public ::testing::Test {
 protected:
  void create(std::int64_t num_pages, std::vector<TableGroup> groups = {},
              std::vector<BlockGroup> blocks = {{2, 100}, {1, 190}}) {
    if (groups.empty()) groups = {{PagedKind::full, 4}, {PagedKind::window, 4, 8}};
    tables_.reset();
    manager_ = std::make_unique<BlockManager>(
        BlockManager::create({.num_blocks = num_pages, .groups = blocks}).value());
    Result<BlockTables> made = BlockTables::create(
        *manager_, {.max_sequences = 16, .report_rows = true, .can_undo = true, .groups = groups});
    ASSERT_TRUE(made.is_ok()) << describe(made.status());
    tables_ = std::make_unique<BlockTables>(std::move(made).value());
  }
  void TearDown() override {
    if (tables_ == nullptr) return;
    EXPECT_OK(tables_->check_invariants());
    tables_.reset();
    EXPECT_OK(manager_->check_invariants());
    EXPECT_EQ(manager_->stats().references, 0);
  }
  Result<AppendResult> grow(SequenceId id, std::int32_t tokens) {
    const AppendDemand demand{id, tokens};
    return tables_->append(std::span(&demand, 1));
  }
  SequenceId sequence(std::int32_t tokens) {
    const SequenceId id = tables_->create_sequence().value();
    EXPECT_OK(grow(id, tokens));
    tables_->settle_append();
    return id;
  }
  Numbers blocks(SequenceId id, std::int32_t group) {
    std::vector<BlockId> ids(256);
    Numbers numbers;
    const std::int64_t count = tables_->blocks_of(id, ids, group).value();
    for (std::int64_t i = 0; i < count; ++i) {
      numbers.push_back(ids[static_cast<std::size_t>(i)].value);
    }
    return numbers;
  }

  std::unique_ptr<BlockManager> manager_;
  std::unique_ptr<BlockTables> tables_;
};

/// Appends one token to a sequence until it has `most`, or is refused. Returns its length.
std::int64_t grow_by_one(BlockTables& tables, SequenceId id, std::int64_t most) {
  while (tables.info(id)->length_tokens < most) {
    if (!tables.append_one_each(std::span(&id, 1)).is_ok()) break;
    tables.settle_append();
  }
  return tables.info(id)->length_tokens;
}

// Others take every block that they can get after each of its steps.
TEST_F(GroupTablesTest, AnAppendWithinItsPromiseIsNeverRefused) {
  const std::vector<BlockGroup> blocks = {{5, 200}, {3, 333}};
  for (const std::vector<TableGroup>& groups :
       {std::vector<TableGroup>{{PagedKind::full, 2}, {PagedKind::full, 8}},
        std::vector<TableGroup>{{PagedKind::full, 2}, {PagedKind::window, 4, 10, 2}},
        std::vector<TableGroup>{{PagedKind::chunk, 2, 12}, {PagedKind::window, 1, 1}},
        std::vector<TableGroup>{
            {PagedKind::full, 4},
            {.kind = PagedKind::state, .num_parts = 2},
        }}) {
    for (const std::int64_t before : {0, 1, 7, 13}) {
      create(24, groups, blocks);
      std::vector<SequenceId> others(14);
      for (SequenceId& other : others) other = tables_->create_sequence().value();
      const SequenceId id = tables_->create_sequence().value();
      for (std::int64_t i = 0; i < before; ++i) {
        for (const SequenceId each : {id, others[0]}) {
          ASSERT_OK(grow(each, 1));
          tables_->settle_append();
        }
      }
      ASSERT_OK(tables_->promise_capacity(id, 50));
      std::int64_t refusals = 0;
      for (std::int64_t length = before; length <= 50; ++length) {
        ASSERT_EQ(grow_by_one(*tables_, id, length), length) << "from " << before;
        for (const SequenceId other : others) {
          const std::int64_t most = tables_->info(other)->length_tokens + 20;
          refusals += grow_by_one(*tables_, other, most) < most ? 1 : 0;
        }
      }
      EXPECT_GT(refusals, 50);
      ASSERT_OK(tables_->destroy(id));
      ASSERT_OK(tables_->destroy_many(others));
    }
  }
}

// What fits into the sequence's own page needs no page, and others do not take it.
TEST_F(GroupTablesTest, APromiseCountsTheSequencesOwnPage) {
  create(2, {{PagedKind::full, 4}, {PagedKind::full, 4}}, {{3, 100}, {3, 100}});
  const SequenceId id = sequence(1);
  EXPECT_EQ(manager_->page_stats().available(), 0);
  EXPECT_FAILS(tables_->promise_capacity(id, 13), exhausted, reservation);
  ASSERT_OK(tables_->promise_capacity(id, 12));
  const SequenceId other = tables_->create_sequence().value();
  EXPECT_FAILS(grow(other, 1).status(), exhausted, page);
  EXPECT_EQ(grow_by_one(*tables_, id, 20), 12);
  // A cut gives nothing of it away.
  ASSERT_OK(tables_->truncate(id, 1));
  EXPECT_FAILS(grow(other, 1).status(), exhausted, page);
  EXPECT_EQ(grow_by_one(*tables_, id, 20), 12);
  ASSERT_OK(tables_->destroy(id));
  ASSERT_OK(tables_->destroy(other));
}

TEST_F(GroupTablesTest, AStepHasItsOwnTokensAndGivesUpOldBlocksAtItsEnd) {
  create(20);
  const SequenceId id = tables_->create_sequence().value();
  ASSERT_OK(grow(id, 16));
  // Ids are page * 3 + place. Pages 0 and 1 have the blocks of the first group.
  EXPECT_EQ(blocks(id, 0), (Numbers{0, 1, 3, 4}));
  EXPECT_EQ(blocks(id, 1), (Numbers{8, 11, 14, 17})) << "the step reads what it has written";
  EXPECT_EQ(manager_->page_stats().free, 14);
  tables_->settle_append();
  EXPECT_EQ(blocks(id, 1), (Numbers{-1, -1, 14, 17}));
  EXPECT_EQ(manager_->page_stats().free, 16);
  ASSERT_OK(grow(id, 1));
  EXPECT_EQ(blocks(id, 1), (Numbers{-1, -1, 14, 17, 8}))
      << "the first group took the page freed last";
  tables_->settle_append();
  EXPECT_EQ(blocks(id, 1), (Numbers{-1, -1, 14, 17, 8})) << "token 9 is still seen by token 16";
  EXPECT_EQ(tables_->info(id)->num_blocks, 5 + 3);
  EXPECT_EQ(tables_->info(id)->waste_tokens, 3 + 3);
  EXPECT_EQ(tables_->lookup(id, 0, 1).value(), kNoBlock);
  EXPECT_EQ(tables_->slot_of(id, 0, 1).value(), -1);
  EXPECT_EQ(tables_->slot_of(id, 9, 1).value(), 14 * 4 + 1);
}

TEST_F(GroupTablesTest, RowsAndViewsHaveIdsOfTheGroup) {
  create(20, {{PagedKind::full, 4, 0, 0, 19, 10}, {PagedKind::window, 4, 8, 0, 1, 1}});
  const SequenceId id = sequence(17);
  Numbers rows(8);
  Numbers lengths(1);
  ASSERT_OK(tables_->copy_rows(std::span(&id, 1), rows, 8, lengths, 0));
  EXPECT_EQ(rows, (Numbers{0, 10, 19, 29, 2 * 19, -1, -1, -1}));
  ASSERT_OK(tables_->copy_rows(std::span(&id, 1), rows, 8, lengths, 1));
  EXPECT_EQ(rows, (Numbers{-1, -1, 5, 6, 7, -1, -1, -1}));
  EXPECT_EQ(lengths[0], 17);
  const BatchView view = tables_->view(std::span(&id, 1), 1).value();
  EXPECT_EQ(view.num_blocks[0], 5);
  for (std::int32_t j = 2; j < 5; ++j) {
    EXPECT_EQ(view.tables.block(0, j).value, rows[static_cast<std::size_t>(j)]);
  }
  const auto slots = grow(id, 2);
  ASSERT_OK(slots);
  EXPECT_EQ((std::vector<std::int64_t>(slots->slots.begin(), slots->slots.end())),
            (std::vector<std::int64_t>{2 * 19 * 4 + 1, 2 * 19 * 4 + 2, 7 * 4 + 1, 7 * 4 + 2}));
  EXPECT_FAILS(tables_->view(std::span(&id, 1), 2), invalid_argument, num_groups);
}

TEST_F(GroupTablesTest, CutsAndForksAreRefusedWhereBlocksAreGone) {
  create(40);
  const SequenceId id = sequence(40);  // the window has tokens 32 to 39
  EXPECT_EQ(tables_->restorable_length(id, 100).value(), 40);
  EXPECT_EQ(tables_->restorable_length(id, 39).value(), 39);
  EXPECT_EQ(tables_->restorable_length(id, 38).value(), 0);
  const std::int64_t free = manager_->page_stats().free;
  for (const std::int64_t length : {38, 1}) {
    for (const Status& status :
         {tables_->truncate(id, length), tables_->fork(id, length).status()}) {
      EXPECT_FAILS(status, failed_precondition, sequence_length);
      EXPECT_EQ(status.subject, id.value);
      EXPECT_EQ(status.required, static_cast<std::uint64_t>(length));
      EXPECT_EQ(status.available, 0U);
    }
  }
  EXPECT_FAILS(tables_->truncate(id, 41), invalid_argument, sequence_length);
  EXPECT_EQ(manager_->page_stats().free, free);
  ASSERT_OK(tables_->fork(id, 39));
  ASSERT_OK(tables_->truncate(id, 39));
  EXPECT_EQ(tables_->restorable_length(id, 39).value(), 39);
  ASSERT_OK(tables_->truncate(id, 0)) << "nothing is read by the first token";
  ASSERT_OK(grow(id, 9));
}

TEST_F(GroupTablesTest, RollbackTokensAreKept) {
  create(40, {{PagedKind::full, 4}, {PagedKind::window, 4, 8, 6}});
  const SequenceId id = sequence(40);
  EXPECT_EQ(tables_->restorable_length(id, 34).value(), 34);
  ASSERT_OK(tables_->truncate(id, 34));
}

TEST_F(GroupTablesTest, AChunkIsKeptWhole) {
  create(40, {{PagedKind::full, 4}, {PagedKind::chunk, 4, 8}});
  const SequenceId id = sequence(24);  // the chunk of tokens 16 to 23
  EXPECT_EQ(manager_->group_stats(1).referenced, 2);
  EXPECT_EQ(tables_->restorable_length(id, 17).value(), 17);
  EXPECT_EQ(tables_->restorable_length(id, 16).value(), 0);
  ASSERT_OK(grow(id, 1));
  EXPECT_EQ(manager_->group_stats(1).referenced, 3);
  tables_->settle_append();
  EXPECT_EQ(manager_->group_stats(1).referenced, 1);
}

TEST_F(GroupTablesTest, AnEncodersBlocksComeWithTheFirstTokenAndStay) {
  create(40, {{PagedKind::full, 4}, {PagedKind::cross, 4, 10}});
  EXPECT_REFUSES(tables_->create_sequence({.cross_tokens = 11}), invalid_argument, cross_tokens);
  const SequenceId id = tables_->create_sequence({.cross_tokens = 10}).value();
  EXPECT_EQ(manager_->stats().referenced, 0);
  ASSERT_OK(grow(id, 1));
  EXPECT_EQ(manager_->group_stats(1).referenced, 3);
  EXPECT_EQ(tables_->slot_of(id, 9, 1).value(), blocks(id, 1)[2] * 4 + 1);
  const SequenceId child = tables_->fork(id, 0).value();
  ASSERT_OK(tables_->truncate(id, 0));
  EXPECT_EQ(manager_->group_stats(1).referenced, 3);
  EXPECT_EQ(tables_->info(child)->cross_tokens, 10);
  ASSERT_OK(tables_->destroy(id));
  EXPECT_EQ(manager_->group_stats(1).referenced, 3) << "the child has them";
}

TEST_F(GroupTablesTest, ARefusedAppendNamesGroupAndDemandAndChangesNothing) {
  create(6);
  const SequenceId a = sequence(8);  // 1 + 2 pages
  const SequenceId b = tables_->create_sequence().value();
  const std::vector<AppendDemand> demands{{a, 1}, {b, 8}};
  const Status status = tables_->append(demands).status();
  EXPECT_FAILS(status, exhausted, page);
  EXPECT_EQ(status.subject, 1U) << "the window";
  EXPECT_EQ(tables_->failed_demand(), 1);
  EXPECT_EQ(tables_->info(a)->length_tokens, 8);
  EXPECT_EQ(manager_->page_stats().free, 3);
  const Explanation e = tables_->explain(status);
  EXPECT_FALSE(e.fits);
  EXPECT_EQ(e.requested, 5);
  ASSERT_EQ(e.num_largest, 1U);
  EXPECT_EQ(e.largest[0].bytes, 2 * 100 + 2 * 190);
  EXPECT_EQ(e.returning[0], 3) << "pages";
}

TEST_F(GroupTablesTest, SharedPagesReturnWithTheLast) {
  create(40);
  const SequenceId a = sequence(20);  // 3 + 2 pages, one block more in the first group's last
  const SequenceId b = tables_->fork(a, 20).value();
  ASSERT_OK(grow(b, 4));
  tables_->settle_append();
  const Explanation e = tables_->explain(100);
  ASSERT_EQ(e.num_largest, 2U);
  const std::int64_t before = manager_->page_stats().available();
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_OK(tables_->destroy(SequenceId(e.largest[i].number)));
    EXPECT_EQ(manager_->page_stats().available() - before, e.returning[i]) << i;
  }
}

TEST_F(GroupTablesTest, AnUndoneStepHasItsWindowBack) {
  create(20);
  const SequenceId id = sequence(16);
  const Numbers window = blocks(id, 1);
  const std::int64_t free = manager_->page_stats().free;
  ASSERT_OK(grow(id, 12));
  ASSERT_OK(tables_->undo_append(false));
  EXPECT_EQ(blocks(id, 1), window);
  EXPECT_EQ(tables_->info(id)->length_tokens, 16);
  EXPECT_EQ(manager_->page_stats().free, free);
  EXPECT_FAILS(tables_->undo_append(false), failed_precondition, sequence);
}

TEST_F(GroupTablesTest, BlocksAreTakenByGroup) {
  create(40);
  const SequenceId id = sequence(22);
  std::vector<BlockId> all(8);
  std::vector<Generation> generations(8);
  ASSERT_EQ(tables_->blocks_of(id, all, 0).value(), 6);
  std::vector<BlockId> window(8);
  std::vector<Generation> of_window(8);
  ASSERT_EQ(tables_->blocks_of(id, window, 1).value(), 6);
  for (std::size_t i = 0; i < 6; ++i) {
    generations[i] = manager_->generation(all[i]);
    if (window[i] != kNoBlock) of_window[i] = manager_->generation(window[i]);
  }
  const auto from = [&](std::int64_t first, std::int64_t length) {
    const auto at = static_cast<std::size_t>(first);
    const std::vector<GroupBlocks> blocks{
        {0, std::span(all).first(6), std::span(generations).first(6)},
        {first, std::span(window).subspan(at, 6 - at), std::span(of_window).subspan(at, 6 - at)}};
    return tables_->create_sequence_from(length, blocks);
  };
  EXPECT_FAILS(from(4, 22), invalid_argument, block_index) << "token 22 reads token 15";
  EXPECT_FAILS(from(3, 18), invalid_argument, num_blocks);
  EXPECT_FAILS(tables_->create_sequence_from(22, {}), invalid_argument, num_groups);
  std::swap(all[5], window[5]);
  std::swap(generations[5], of_window[5]);
  EXPECT_FAILS(from(3, 22), invalid_argument, none) << "a block of the other group";
  EXPECT_EQ(from(3, 22).status().option, Option::groups);
  std::swap(all[5], window[5]);
  std::swap(generations[5], of_window[5]);
  const SequenceId made = from(3, 22).value();
  EXPECT_EQ(blocks(made, 1),
            (Numbers{-1, -1, -1, window[3].value, window[4].value, window[5].value}));
  const auto copied = grow(made, 1);
  ASSERT_OK(copied);
  EXPECT_EQ(copied->copies.size(), 2U) << "the last block of each group is shared";
  EXPECT_EQ(copied->copy_groups[1], 1);
}

TEST_F(GroupTablesTest, OfGivenBlocksAWindowKeepsItsOwn) {
  create(40);
  const SequenceId id = tables_->create_sequence().value();
  ASSERT_OK(grow(id, 22));  // not settled: the window still has all blocks
  std::vector<std::vector<BlockId>> ids(2, std::vector<BlockId>(6));
  std::vector<std::vector<Generation>> generations(2);
  std::vector<GroupBlocks> all;
  for (std::int32_t g = 0; g < 2; ++g) {
    const auto at = static_cast<std::size_t>(g);
    ASSERT_EQ(tables_->blocks_of(id, ids[at], g).value(), 6);
    for (const BlockId block : ids[at]) generations[at].push_back(manager_->generation(block));
    all.push_back({0, ids[at], generations[at]});
  }
  const SequenceId made = tables_->create_sequence_from(22, all).value();
  tables_->settle_append();
  EXPECT_OK(tables_->check_invariants());
  EXPECT_EQ(blocks(made, 1), blocks(id, 1));
  ASSERT_OK(tables_->destroy(id));
  EXPECT_OK(tables_->check_invariants());
  EXPECT_EQ(manager_->group_stats(1).referenced, 3);
}

TEST_F(GroupTablesTest, PinsHoldAGroupOrAll) {
  create(40);
  const SequenceId id = sequence(22);
  EXPECT_FAILS(tables_->pin(id, {.first_block = 1}), invalid_argument, block_index);
  EXPECT_FAILS(tables_->pin(id, {.num_blocks = 1}), invalid_argument, num_blocks);
  EXPECT_FAILS(tables_->pin(id, {.group = 2}), invalid_argument, num_groups);
  EXPECT_FAILS(tables_->pin(id, {.first_block = 0, .num_blocks = 2, .group = 1}), invalid_argument,
               block_index);
  const HolderId all = tables_->pin(id).value();
  const HolderId one = tables_->pin(id, {.group = 1}).value();
  ASSERT_OK(tables_->destroy(id));
  EXPECT_EQ(manager_->group_stats(0).referenced, 6);
  ASSERT_OK(tables_->unpin(all));
  EXPECT_EQ(manager_->group_stats(0).referenced, 0);
  EXPECT_EQ(manager_->group_stats(1).referenced, 3);
  std::vector<BlockId> ids(8);
  EXPECT_EQ(tables_->blocks_of(one, ids, 1).value(), 6);
  EXPECT_EQ(ids[2], kNoBlock);
  ASSERT_OK(tables_->unpin(one));
}

TEST_F(GroupTablesTest, BadGroupsAreRefused) {
  const BlockGroup blocks[] = {{2, 100}, {1, 190}};
  BlockManager pool = BlockManager::create({.num_blocks = 8, .groups = blocks}).value();
  const auto make = [&](std::vector<TableGroup> groups) {
    return BlockTables::create(pool, {.groups = groups}).status();
  };
  EXPECT_FAILS(make({}), invalid_argument, num_groups);
  EXPECT_FAILS(make({{}}), invalid_argument, num_groups);
  const auto option_of = [&](const TableGroup& group) {
    const Status status = make({{}, group});
    EXPECT_FALSE(status.is_ok());
    return status.option;
  };
  EXPECT_EQ(option_of({.kind = PagedKind::window, .limit_tokens = 0}), Option::limit_tokens);
  EXPECT_EQ(option_of({.kind = PagedKind::chunk, .limit_tokens = 17}), Option::limit_tokens);
  EXPECT_EQ(option_of({.block_size_tokens = 0}), Option::block_size_tokens);
  BlockManager plain = BlockManager::create({.num_blocks = 8}).value();
  const TableGroup one[] = {{}};
  EXPECT_FAILS(BlockTables::create(plain, {.groups = one}), invalid_argument, num_groups);
}

}  // namespace
}  // namespace kvarena
