// The ring's copy of a step: what the tables said at that moment, whatever they say later.

#include "support/faulty_device.hpp"
#include "support/status_matchers.hpp"

#include "kvarena/device/host_device.hpp"
#include "step/step_ring.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvarena {
namespace {

constexpr std::int32_t kBlockSize = 2;

class StepRingTest : public ::testing::Test {
 protected:
  static StepLimits limits(std::int32_t steps) {
    return {.steps_in_flight = steps, .max_rows = 4, .max_tokens = 2048, .max_blocks = 1024};
  }
  /// Appends to the tables and captures the batch.
  void capture(StepSlot& slot, const std::vector<AppendDemand>& demands) {
    const Result<AppendResult> appended = tables.append(demands);
    ASSERT_OK(appended);
    ASSERT_OK(capture_step(slot, tables, demands, *appended));
  }
  /// Row `row` of the slot equals the tables of `id` now.
  void expect_row(const StepSlot& slot, std::int32_t row, SequenceId id) {
    const BatchView batch = slot.batch();
    const SequenceInfo info = *tables.info(id);
    ASSERT_EQ(batch.seq_lens[row], info.length_tokens);
    const std::int64_t blocks = (info.length_tokens + kBlockSize - 1) / kBlockSize;
    ASSERT_EQ(batch.num_blocks[row], blocks);
    for (std::int64_t j = 0; j < blocks; ++j) {
      ASSERT_EQ(batch.tables.block(row, j), *tables.lookup(id, j)) << "block " << j;
    }
  }

  std::unique_ptr<HostDevice> device = HostDevice::create({.streams = HostStreams::manual}).value();
  BlockManager manager = BlockManager::create({.num_blocks = 600}).value();
  BlockTables tables =
      BlockTables::create(manager, {.block_size_tokens = kBlockSize, .max_sequences = 4}).value();
};

TEST_F(StepRingTest, StepsTakeTheSlotsInTurn) {
  const StepRing ring = StepRing::create(*device, limits(3)).value();
  EXPECT_EQ(ring.size(), 3U);
  for (std::uint64_t step = 0; step < 9; ++step) EXPECT_EQ(ring.index_of(step), step % 3);
}

TEST_F(StepRingTest, WaitingMeansTheWorkBeforeTheMark) {
  StepRing ring = StepRing::create(*device, limits(2)).value();
  const StreamId stream = *device->create_stream();
  int done = 0;
  const auto count = [](void* number) {
    ++*static_cast<int*>(number);
    return Status{};
  };
  EXPECT_OK(ring.wait(0)) << "never used";
  for (const std::size_t slot : {0U, 1U}) {
    ASSERT_OK(device->launch_host(count, &done, stream));
    ASSERT_OK(ring.mark(slot, stream));
  }
  EXPECT_OK(ring.wait(0));
  EXPECT_EQ(done, 1);
  EXPECT_OK(ring.wait(1));
  EXPECT_EQ(done, 2);
}

TEST_F(StepRingTest, CapturesRaggedRowsOverSeveralPagesOfTheTables) {
  StepRing ring = StepRing::create(*device, limits(1)).value();
  const SequenceId empty = *tables.create_sequence();
  const SequenceId one_page = *tables.create_sequence();
  const SequenceId exactly_two = *tables.create_sequence();
  const SequenceId three = *tables.create_sequence();
  const auto page_tokens = BlockTables::kPageEntries * kBlockSize;
  StepSlot& slot = ring.slot(0);
  capture(
      slot,
      {{one_page, 3}, {three, 2 * page_tokens + 1}, {empty, 0}, {exactly_two, 2 * page_tokens}});
  ASSERT_EQ(slot.num_rows, 4);
  EXPECT_EQ(slot.num_tokens, 3 + 4 * page_tokens + 1);
  const std::vector<std::int64_t> offsets(slot.q_offsets.begin(), slot.q_offsets.begin() + 5);
  const std::int64_t p = page_tokens;
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 3, 2 * p + 4, 2 * p + 4, 4 * p + 4}));
  expect_row(slot, 0, one_page);
  expect_row(slot, 1, three);
  expect_row(slot, 2, empty);
  expect_row(slot, 3, exactly_two);
  std::size_t next = 0;
  for (const auto& [id, count] : {std::pair(one_page, 3), std::pair(three, 2 * page_tokens + 1)}) {
    for (int i = 0; i < count; ++i, ++next) {
      ASSERT_EQ(slot.slots[next], *tables.slot_of(id, i)) << "new token " << next;
    }
  }
}

TEST_F(StepRingTest, CapturesFilledBlocksNotReservedOnes) {
  StepRing ring = StepRing::create(*device, limits(1)).value();
  const SequenceId id = *tables.create_sequence();
  ASSERT_OK(tables.reserve_capacity(id, 900));
  capture(ring.slot(0), {{id, 5}});
  EXPECT_EQ(ring.slot(0).batch().num_blocks[0], 3);
}

TEST_F(StepRingTest, ACapturedStepStaysWhileTheTablesChange) {
  StepRing ring = StepRing::create(*device, limits(2)).value();
  const SequenceId a = *tables.create_sequence();
  capture(ring.slot(0), {{a, 7}});
  std::vector<BlockId> before(4);
  ASSERT_OK(tables.blocks_of(a, before));
  const SequenceId fork = *tables.fork(a, 7);
  capture(ring.slot(1), {{fork, 1}, {a, 1}});
  EXPECT_EQ(ring.slot(1).num_copies, 1U);
  EXPECT_EQ(ring.slot(1).copies[0].source, before[3]);
  EXPECT_EQ(ring.slot(1).copies[0].target, *tables.lookup(fork, 3));
  ASSERT_OK(tables.destroy(a));
  ASSERT_OK(tables.truncate(fork, 1));
  const BatchView first = ring.slot(0).batch();
  EXPECT_EQ(first.seq_lens[0], 7);
  for (std::int64_t j = 0; j < 4; ++j) {
    EXPECT_EQ(first.tables.block(0, j), before[static_cast<std::size_t>(j)]);
  }
  EXPECT_EQ(ring.slot(1).batch().seq_lens[0], 8);
}

TEST_F(StepRingTest, AVanishedSequenceIsNotFound) {
  StepRing ring = StepRing::create(*device, limits(1)).value();
  const std::vector<AppendDemand> demands{{*tables.create_sequence(), 1}};
  const Result<AppendResult> appended = tables.append(demands);
  ASSERT_OK(appended);
  ASSERT_OK(tables.destroy(demands[0].sequence));
  EXPECT_FAILS(capture_step(ring.slot(0), tables, demands, *appended), not_found, sequence);
}

TEST_F(StepRingTest, AFailureOfAnyDeviceCallIsReturned) {
  bool created = false;
  const std::int64_t calls = test::fail_every_call(
      *device, [&](test::FaultyDevice& d) { created = StepRing::create(d, limits(3)).is_ok(); },
      [](std::int64_t) {});
  EXPECT_TRUE(created);
  EXPECT_EQ(calls, 6) << "three events made and destroyed";
}

}  // namespace
}  // namespace kvarena
