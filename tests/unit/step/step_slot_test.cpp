// The host's copy of a step: what the tables said at that moment, whatever they say later.

#include "support/status_matchers.hpp"

#include "step/step_slot.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kBlockSize = 2;

class StepSlotTest : public ::testing::Test {
 protected:
  static constexpr StepLimits kLimits{.max_rows = 4, .max_tokens = 2048, .max_blocks = 1024};

  /// Appends to the tables and captures the batch.
  void capture(StepSlot& into, const std::vector<AppendDemand>& demands) {
    const Result<AppendResult> appended = tables.append(demands);
    ASSERT_OK(appended);
    ASSERT_OK(capture_step(into, tables, demands, *appended));
  }
  /// Row `row` of the slot equals the tables of `id` now.
  void expect_row(std::int32_t row, SequenceId id) {
    const BatchView batch = slot.batch();
    const SequenceInfo info = *tables.info(id);
    ASSERT_EQ(batch.seq_lens[row], info.length_tokens);
    const std::int64_t blocks = (info.length_tokens + kBlockSize - 1) / kBlockSize;
    ASSERT_EQ(batch.num_blocks[row], blocks);
    for (std::int64_t j = 0; j < blocks; ++j) {
      ASSERT_EQ(batch.tables.block(row, j), *tables.lookup(id, j)) << "block " << j;
    }
  }

  BlockManager manager = BlockManager::create({.num_blocks = 600}).value();
  BlockTables tables =
      BlockTables::create(manager, {.block_size_tokens = kBlockSize, .max_sequences = 4}).value();
  StepSlot slot{kLimits};
};

TEST_F(StepSlotTest, CapturesRaggedRowsOverSeveralPagesOfTheTables) {
  const SequenceId empty = *tables.create_sequence();
  const SequenceId one_page = *tables.create_sequence();
  const SequenceId exactly_two = *tables.create_sequence();
  const SequenceId three = *tables.create_sequence();
  const auto page_tokens = BlockTables::kPageEntries * kBlockSize;
  capture(
      slot,
      {{one_page, 3}, {three, 2 * page_tokens + 1}, {empty, 0}, {exactly_two, 2 * page_tokens}});
  ASSERT_EQ(slot.num_rows, 4);
  EXPECT_EQ(slot.num_tokens, 3 + 4 * page_tokens + 1);
  const std::vector<std::int64_t> offsets(slot.q_offsets.begin(), slot.q_offsets.begin() + 5);
  const std::int64_t p = page_tokens;
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 3, 2 * p + 4, 2 * p + 4, 4 * p + 4}));
  expect_row(0, one_page);
  expect_row(1, three);
  expect_row(2, empty);
  expect_row(3, exactly_two);
  std::size_t next = 0;
  for (const auto& [id, count] : {std::pair(one_page, 3), std::pair(three, 2 * page_tokens + 1)}) {
    for (int i = 0; i < count; ++i, ++next) {
      ASSERT_EQ(slot.slots[next], *tables.slot_of(id, i)) << "new token " << next;
    }
  }
}

TEST_F(StepSlotTest, CapturesFilledBlocksNotReservedOnes) {
  const SequenceId id = *tables.create_sequence();
  ASSERT_OK(tables.reserve_capacity(id, 900));
  capture(slot, {{id, 5}});
  EXPECT_EQ(slot.batch().num_blocks[0], 3);
}

TEST_F(StepSlotTest, ACapturedStepStaysWhileTheTablesChange) {
  const SequenceId a = *tables.create_sequence();
  capture(slot, {{a, 7}});
  std::vector<BlockId> before(4);
  ASSERT_OK(tables.blocks_of(a, before));
  const SequenceId fork = *tables.fork(a, 7);
  StepSlot second{kLimits};
  capture(second, {{fork, 1}, {a, 1}});
  EXPECT_EQ(second.num_copies, 1U);
  EXPECT_EQ(second.copies[0].source, before[3]);
  EXPECT_EQ(second.copies[0].target, *tables.lookup(fork, 3));
  ASSERT_OK(tables.destroy(a));
  ASSERT_OK(tables.truncate(fork, 1));
  const BatchView first = slot.batch();
  EXPECT_EQ(first.seq_lens[0], 7);
  for (std::int64_t j = 0; j < 4; ++j) {
    EXPECT_EQ(first.tables.block(0, j), before[static_cast<std::size_t>(j)]);
  }
  EXPECT_EQ(second.batch().seq_lens[0], 8);
}

TEST_F(StepSlotTest, AVanishedSequenceIsNotFound) {
  const std::vector<AppendDemand> demands{{*tables.create_sequence(), 1}};
  const Result<AppendResult> appended = tables.append(demands);
  ASSERT_OK(appended);
  ASSERT_OK(tables.destroy(demands[0].sequence));
  EXPECT_FAILS(capture_step(slot, tables, demands, *appended), not_found, sequence);
}

}  // namespace
}  // namespace kvarena
