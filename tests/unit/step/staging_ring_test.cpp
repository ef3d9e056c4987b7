// Staging without a device: what the host writes into the ring, read by the plain version of the
// kernel, makes the arrays equal to the tables.

#include "support/status_matchers.hpp"
#include "unit/step/host_tables.hpp"
#include "unit/step/step_game.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <vector>

namespace kvarena {
namespace {

using test::ExpectedStep;
using test::HostTables;
using test::nothing;
using test::StepArrays;
using test::StepGame;

#define EXPECT_STEP(expected, tables) EXPECT_EQ((tables).difference(expected), "")

class StagingGame : public ::testing::TestWithParam<std::int32_t> {};

// Now and then a step is missed, staged but never launched, or launched late.
TEST_P(StagingGame, ArraysEqualTheTablesAfterEveryStep) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const DeviceTablesOptions options = test::small_tables(GetParam(), 3);
    StepGame game({.seed = seed, .tables = options});
    HostTables host(options);
    std::deque<ExpectedStep> queued;
    std::uint64_t misses = 0;
    const auto run_oldest = [&] {
      host.run_one();
      const std::string difference = host.difference(queued.front());
      queued.pop_front();
      return difference;
    };
    for (int step = 0; step < 3000; ++step) {
      const AppendResult appended = game.next();
      ASSERT_OK(host.stage(game.tables(), appended));
      if (game.one_in(6)) continue;  // never launched: the next one takes its place
      queued.push_back(game.expected());
      host.launch();
      host.advance();
      while (queued.size() >= 3 || (!queued.empty() && game.one_in(2))) {
        ASSERT_EQ(run_oldest(), "") << "seed " << seed << " step " << step;
      }
      if (!queued.empty() || !game.one_in(10)) continue;
      host.launch_and_run();
      ASSERT_EQ(host.misses(), ++misses);
      ASSERT_EQ(host.difference(nothing()), "") << "a miss skips every row";
    }
    EXPECT_EQ(host.misses(), misses);
    if (GetParam() > 1) {
      EXPECT_GT(game.tables().stats().copies_on_write, 50U);
    }
    EXPECT_GT(game.tables().stats().sequences_ever, 500U);
  }
}

INSTANTIATE_TEST_SUITE_P(BlockSizes, StagingGame, ::testing::Values(1, 3, 16),
                         ::testing::PrintToStringParamName());

// More rows than a tile of the kernel, more changed entries than it takes at a time: the game that
// device_tables_test.cpp plays on a GPU.
TEST(StagingLargeGame, ArraysEqualTheTables) {
  const test::StepGameOptions options = test::large_game();
  StepGame game(options);
  HostTables host(options.tables);
  std::size_t most_rows = 0;
  std::size_t most_tokens = 0;
  std::int64_t most_changes = 0;
  for (int step = 0; step < 30; ++step) {
    const AppendResult appended = game.next();
    std::int64_t changes = 0;
    for (const AppendedRow& row : appended.rows) changes += row.num_changed_blocks;
    most_rows = std::max(most_rows, appended.rows.size());
    most_tokens = std::max(most_tokens, appended.slots.size());
    most_changes = std::max(most_changes, changes);
    ASSERT_OK(host.stage(game.tables(), appended));
    host.launch_and_run();
    host.advance();
    ASSERT_EQ(host.difference(game.expected()), "") << "step " << step;
  }
  EXPECT_GT(most_rows, 2048U);
  EXPECT_GT(most_tokens, 20'000U);
  EXPECT_GT(most_changes, 10'000);
}

class StagingRingTest : public ::testing::Test {
 protected:
  /// A step of the game, staged.
  ExpectedStep stage() {
    const AppendResult appended = game.next();
    EXPECT_OK(host.stage(game.tables(), appended));
    return game.expected();
  }

  DeviceTablesOptions options = test::small_tables(4);
  StepGame game{{.seed = 7, .tables = options}};
  HostTables host{options};
};

TEST_F(StagingRingTest, ALaunchWithoutAStepMisses) {
  host.launch_and_run();
  EXPECT_EQ(host.misses(), 1U);
  EXPECT_STEP(nothing(), host);
  const ExpectedStep step = stage();
  host.launch_and_run();
  EXPECT_STEP(step, host);
  host.advance();
  host.launch_and_run();
  EXPECT_EQ(host.misses(), 2U);
  EXPECT_STEP(nothing(), host);
}

TEST_F(StagingRingTest, AdvancingWithoutAStepDoesNothing) {
  host.advance();
  for (int i = 0; i < 3; ++i) {
    const ExpectedStep step = stage();
    host.launch_and_run();
    EXPECT_STEP(step, host);
    host.advance();
    host.advance();
  }
  EXPECT_EQ(host.misses(), 0U);
}

TEST_F(StagingRingTest, TheSerialIsThereWhenEverythingElseIs) {
  EXPECT_EQ(host.staged_serial(), 0U);
  static_cast<void>(stage());
  EXPECT_EQ(host.header(0).serial, 1U);
  EXPECT_EQ(host.header(0).follows, 0U);
  EXPECT_EQ(host.staged_serial(), 1U);
  static_cast<void>(stage());
  EXPECT_EQ(host.header(0).serial, 2U);
  EXPECT_EQ(host.header(0).follows, 0U);
  host.advance();
  EXPECT_EQ(host.staged_serial(), 2U);
  static_cast<void>(stage());
  EXPECT_EQ(host.header(1).serial, 3U);
  EXPECT_EQ(host.header(1).follows, 2U);
  EXPECT_EQ(host.staged_serial(), 3U);
  host.withdraw(game.tables());
  EXPECT_EQ(host.header(1).serial, 0U);
  EXPECT_EQ(host.staged_serial(), 2U);
}

// ---- refusals -----------------------------------------------------------------------------------

class StagingLimits : public ::testing::Test {
 protected:
  static DeviceTablesOptions options() {
    return {.limits = {.max_rows = 2, .max_tokens = 40, .max_blocks = 9},
            .max_sequences = 3,
            .max_sequence_blocks = 8,
            .block_size_tokens = 4};
  }
  AppendResult grow(const std::vector<AppendDemand>& demands) {
    return tables.append(demands).value();
  }
  /// A refusal leaves the step that was staged before, and what the tables count as mirrored can
  /// only have become less.
  void expect_first_step_is_there() {
    host.launch_and_run();
    const StepArrays arrays = host.arrays();
    EXPECT_EQ(host.misses(), 0U);
    EXPECT_EQ(arrays.seq_lens[0], 3);
    EXPECT_EQ(arrays.seq_lens[1], 0);
  }

  BlockManager manager = BlockManager::create({.num_blocks = 100}).value();
  BlockTables tables =
      BlockTables::create(manager,
                          {.block_size_tokens = 4, .max_sequences = 5, .report_rows = true})
          .value();
  HostTables host{options()};
  SequenceId a = *tables.create_sequence();
  SequenceId b = *tables.create_sequence();
  SequenceId c = *tables.create_sequence();
  AppendResult first = grow({{a, 3}});
  Status staged = host.stage(tables, first);
};

TEST_F(StagingLimits, Rows) {
  ASSERT_OK(staged);
  EXPECT_FAILS(host.stage(tables, grow({{a, 1}, {b, 1}, {c, 1}})), limit_exceeded, num_sequences);
  expect_first_step_is_there();
}

TEST_F(StagingLimits, Tokens) {
  EXPECT_FAILS(host.stage(tables, grow({{a, 20}, {b, 21}})), limit_exceeded, num_tokens);
  expect_first_step_is_there();
}

TEST_F(StagingLimits, BlocksOfARow) {
  const Status status = host.stage(tables, grow({{b, 33}}));
  EXPECT_FAILS(status, limit_exceeded, block);
  EXPECT_EQ(status.required, 9U);
  EXPECT_EQ(status.available, 8U);
  EXPECT_EQ(status.subject, 1U) << "b's table row";
  expect_first_step_is_there();
}

TEST_F(StagingLimits, ChangedEntries) {
  EXPECT_FAILS(host.stage(tables, grow({{a, 20}, {b, 16}})), limit_exceeded, block);
  expect_first_step_is_there();
}

TEST_F(StagingLimits, TableRows) {
  const SequenceId fourth = *tables.create_sequence();
  EXPECT_FAILS(host.stage(tables, grow({{fourth, 1}})), limit_exceeded, num_sequences);
  expect_first_step_is_there();
}

TEST_F(StagingLimits, WhatWasRefusedIsSentWhenItFits) {
  EXPECT_FAILS(host.stage(tables, grow({{a, 20}, {b, 16}})), limit_exceeded, block);
  ASSERT_OK(host.stage(tables, grow({{a, 1}})));
  host.launch_and_run();
  host.advance();
  ASSERT_OK(host.stage(tables, grow({{b, 1}})));
  host.launch_and_run();
  const StepArrays arrays = host.arrays();
  for (std::int64_t j = 0; j < 6; ++j) {
    const auto at = static_cast<std::size_t>(j);
    EXPECT_EQ(arrays.block_tables[at], tables.lookup(a, j).value());
    if (j == 5) continue;
    EXPECT_EQ(arrays.block_tables[static_cast<std::size_t>(kernels::StepShape::kGranule) + at],
              tables.lookup(b, j).value());
  }
}

TEST_F(StagingLimits, RowsThatTheseTablesDidNotReport) {
  BlockTables silent = BlockTables::create(manager, {.block_size_tokens = 4}).value();
  const AppendDemand one{*silent.create_sequence(), 1};
  EXPECT_FAILS(host.stage(silent, *silent.append(std::span(&one, 1))), failed_precondition,
               sequence);
  const AppendResult old = grow({{b, 9}});
  ASSERT_OK(tables.destroy(b));
  EXPECT_FAILS(host.stage(tables, old), failed_precondition, sequence);
  expect_first_step_is_there();
}

// ---- rows that nobody staged --------------------------------------------------------------------

TEST(StagedRows, ThatMakeNoSenseAreSkipped) {
  const kernels::StepShape shape{.max_rows = 4,
                                 .max_tokens = 100,
                                 .max_changes = 10,
                                 .max_sequences = 6,
                                 .max_blocks_a_row = 5,
                                 .block_size = 4,
                                 .table_entries = 6 * 32};
  EXPECT_EQ(plan_row(shape, {5, 17, 17, 5}).num_blocks, 5);
  EXPECT_EQ(plan_row(shape, {0, 0, 0, 0}).granule, 0);
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const kernels::StagedRow& row : std::vector<kernels::StagedRow>{{-1, 4, 1, 0},
                                                                       {6, 4, 1, 0},
                                                                       {0, -1, 0, 0},
                                                                       {0, 21, 0, 0},
                                                                       {0, kMost, 1, 1},
                                                                       {0, 4, 5, 0},
                                                                       {0, 4, -1, 0},
                                                                       {0, 4, 1, 2},
                                                                       {0, 4, 1, -1}}) {
    const kernels::RowPlan plan = plan_row(shape, row);
    EXPECT_EQ(plan.granule, -1) << row.granule << " " << row.seq_len;
    EXPECT_EQ(plan.seq_len + plan.num_new + plan.num_changed + plan.num_blocks, 0);
  }
}

// ---- memory -------------------------------------------------------------------------------------

TEST(DeviceTablesMemoryPlan, ArraysDoNotOverlap) {
  const DeviceTablesOptions options = test::small_tables(16);
  const DeviceTablesMemory plan = plan_memory(options);
  const std::int64_t starts[] = {
      plan.block_tables, plan.row_slots,  plan.slots,     plan.copies, plan.zeros,
      plan.seq_lens,     plan.num_blocks, plan.q_offsets, plan.state,  plan.device_bytes};
  const std::int64_t bytes[] = {plan.shape.table_entries * 4,
                                20 * 4,
                                300 * 8,
                                20 * 8,
                                20 * 8,
                                20 * 4,
                                20 * 4,
                                21 * 8,
                                sizeof(kernels::ScatterState) + sizeof(kernels::StepWord)};
  for (std::size_t i = 0; i + 1 < std::size(starts); ++i) {
    EXPECT_LE(starts[i] + bytes[i], starts[i + 1]) << i;
    EXPECT_EQ(starts[i] % 256, 0) << i;
  }
  EXPECT_EQ(plan.zeros, plan.row_offsets);
  EXPECT_EQ(plan.expected_word, plan.state + 32);
  EXPECT_GE(plan.staging_bytes, plan.ring + 2 * plan.shape.slot_bytes());
  EXPECT_EQ(DeviceTables::device_bytes(options), static_cast<std::uint64_t>(plan.device_bytes));
  EXPECT_EQ(DeviceTables::staging_bytes(options), static_cast<std::uint64_t>(plan.staging_bytes));
}

TEST(DeviceTablesMemoryPlan, OptionsOutOfRangeAreNamed) {
  const auto refused = [](auto change) {
    DeviceTablesOptions options = test::small_tables(16);
    change(options);
    EXPECT_EQ(DeviceTables::device_bytes(options), 0U);
    return check_options(options);
  };
  EXPECT_OK(check_options(test::small_tables(16)));
  EXPECT_REFUSES(refused([](auto& o) { o.limits.steps_in_flight = 0; }), invalid_argument,
                 steps_in_flight);
  EXPECT_REFUSES(refused([](auto& o) { o.limits.max_rows = 0; }), invalid_argument, max_batch_rows);
  EXPECT_REFUSES(refused([](auto& o) { o.limits.max_tokens = (std::int64_t{1} << 30) + 1; }),
                 invalid_argument, max_step_tokens);
  EXPECT_REFUSES(refused([](auto& o) { o.limits.max_blocks = 0; }), invalid_argument,
                 max_batch_blocks);
  EXPECT_REFUSES(refused([](auto& o) { o.max_sequences = 0; }), invalid_argument, max_sequences);
  EXPECT_REFUSES(refused([](auto& o) { o.max_sequence_blocks = 0; }), invalid_argument,
                 max_sequence_tokens);
  EXPECT_REFUSES(refused([](auto& o) { o.block_size_tokens = 65537; }), invalid_argument,
                 block_size_tokens);
}

}  // namespace
}  // namespace kvarena
