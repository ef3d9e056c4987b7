// Staging without a device: what the host writes into the ring, read by the plain version of the
// kernel, makes the arrays equal to the tables.

#include "support/status_matchers.hpp"
#include "unit/step/step_game.hpp"

#include "kernels/reference/scatter_step.hpp"
#include "step/staging_ring.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <vector>

namespace kvarena {
namespace {

using kernels::StagedHeader;
using test::ExpectedStep;
using test::StepArrays;
using test::StepGame;

/// Zeroed memory, aligned as a device's.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::int64_t size)
      : bytes_(new (std::align_val_t{256}) std::byte[static_cast<std::size_t>(size)]{}) {}
  std::byte* data() const { return bytes_.get(); }

 private:
  struct Delete {
    void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{256}); }
  };
  std::unique_ptr<std::byte[], Delete> bytes_;
};

/// Device tables whose device is the host.
class HostTables {
 public:
  explicit HostTables(const DeviceTablesOptions& options)
      : plan(plan_memory(options)),
        memory_(plan.device_bytes),
        staging_(plan.staging_bytes),
        params(place_arrays(plan, memory_.data(), staging_.data())),
        ring(staging_.data() + plan.ring, plan.shape) {
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(plan.zeros));
  }
  void launch() { kernels::reference::scatter_step(params); }
  StepArrays arrays() const { return StepArrays::of(plan, memory_.data()); }
  std::uint64_t misses() const { return *params.misses; }
  StagedHeader& header(std::int64_t slot) {
    return *reinterpret_cast<StagedHeader*>(staging_.data() + plan.ring +
                                            slot * plan.shape.slot_bytes());
  }

  DeviceTablesMemory plan;

 private:
  AlignedMemory memory_;
  AlignedMemory staging_;

 public:
  kernels::ScatterStepParams params;
  StagingRing ring;
};

ExpectedStep nothing() {
  ExpectedStep step;
  step.q_offsets = {0};
  return step;
}

#define EXPECT_STEP(expected, tables) \
  EXPECT_EQ((expected).difference((tables).plan, (tables).arrays()), "")

class StagingGame : public ::testing::TestWithParam<std::int32_t> {};

// Now and then a step is missed, staged but never launched, or launched late.
TEST_P(StagingGame, ArraysEqualTheTablesAfterEveryStep) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const DeviceTablesOptions options = test::small_tables(GetParam(), 3);
    StepGame game({.seed = seed, .tables = options});
    HostTables host(options);
    std::deque<ExpectedStep> queued;
    std::uint64_t misses = 0;
    const auto launch_oldest = [&] {
      host.launch();
      const std::string difference = queued.front().difference(host.plan, host.arrays());
      queued.pop_front();
      return difference;
    };
    for (int step = 0; step < 3000; ++step) {
      const AppendResult appended = game.next();
      ASSERT_OK(host.ring.stage(game.tables(), appended));
      if (game.one_in(6)) continue;  // never launched: the next one takes its place
      queued.push_back(game.expected());
      host.ring.advance();
      while (queued.size() >= 3 || (!queued.empty() && game.one_in(2))) {
        ASSERT_EQ(launch_oldest(), "") << "seed " << seed << " step " << step;
      }
      if (!queued.empty() || !game.one_in(10)) continue;
      host.launch();
      ASSERT_EQ(host.misses(), ++misses);
      ASSERT_EQ(nothing().difference(host.plan, host.arrays()), "") << "a miss skips every row";
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
    ASSERT_OK(host.ring.stage(game.tables(), appended));
    host.ring.advance();
    host.launch();
    ASSERT_EQ(game.expected().difference(host.plan, host.arrays()), "") << "step " << step;
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
    EXPECT_OK(host.ring.stage(game.tables(), appended));
    return game.expected();
  }

  DeviceTablesOptions options = test::small_tables(4);
  StepGame game{{.seed = 7, .tables = options}};
  HostTables host{options};
};

TEST_F(StagingRingTest, BeforeTheFirstStepALaunchMisses) {
  host.launch();
  EXPECT_EQ(host.misses(), 1U);
  EXPECT_STEP(nothing(), host);
  const ExpectedStep step = stage();
  host.launch();
  EXPECT_STEP(step, host);
  EXPECT_EQ(host.misses(), 1U);
}

TEST_F(StagingRingTest, AStepLaunchedTwiceIsTakenOnceAndTheNextIsFound) {
  for (int i = 0; i < 5; ++i) {
    const ExpectedStep step = stage();
    host.ring.advance();
    host.launch();
    EXPECT_STEP(step, host);
    host.launch();
    EXPECT_STEP(nothing(), host);
  }
  EXPECT_EQ(host.misses(), 5U);
}

TEST_F(StagingRingTest, AStepIsThereFromWhenItIsStaged) {
  const ExpectedStep step = stage();
  host.launch();  // before advance
  EXPECT_STEP(step, host);
  host.ring.advance();
  const ExpectedStep next = stage();
  host.launch();
  EXPECT_STEP(next, host);
  EXPECT_EQ(host.misses(), 0U);
}

TEST_F(StagingRingTest, AStepStagedAgainAfterItsLaunchMakesEveryLaterLaunchAMiss) {
  static_cast<void>(stage());
  host.launch();
  static_cast<void>(stage());  // the host believes that nothing was launched
  for (std::uint64_t i = 1; i <= 5; ++i) {
    host.launch();
    host.ring.advance();
    EXPECT_EQ(host.misses(), i) << "never a wrong table";
    EXPECT_STEP(nothing(), host);
    static_cast<void>(stage());
  }
}

TEST_F(StagingRingTest, StepsOverwrittenBeforeTheirLaunchMakeEveryLaterLaunchAMiss) {
  for (int i = 0; i < 3; ++i) {
    static_cast<void>(stage());
    host.ring.advance();  // a lie
  }
  for (std::uint64_t i = 1; i <= 4; ++i) {
    host.launch();
    EXPECT_EQ(host.misses(), i);
    EXPECT_STEP(nothing(), host);
  }
}

TEST_F(StagingRingTest, AdvancingWithoutAStepDoesNothing) {
  host.ring.advance();
  const ExpectedStep step = stage();
  host.ring.advance();
  host.ring.advance();
  host.launch();
  EXPECT_STEP(step, host);
  const ExpectedStep next = stage();
  host.launch();
  EXPECT_STEP(next, host);
}

TEST_F(StagingRingTest, TheSerialIsThereWhenEverythingElseIs) {
  static_cast<void>(stage());
  EXPECT_EQ(host.header(0).serial, 1U);
  EXPECT_EQ(host.header(0).follows, 0U);
  static_cast<void>(stage());
  EXPECT_EQ(host.header(0).serial, 2U);
  EXPECT_EQ(host.header(0).follows, 0U);
  host.ring.advance();
  static_cast<void>(stage());
  EXPECT_EQ(host.header(1).serial, 3U);
  EXPECT_EQ(host.header(1).follows, 2U);
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
    host.launch();
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
  Status staged = host.ring.stage(tables, first);
};

TEST_F(StagingLimits, Rows) {
  ASSERT_OK(staged);
  EXPECT_FAILS(host.ring.stage(tables, grow({{a, 1}, {b, 1}, {c, 1}})), exhausted, workspace);
  expect_first_step_is_there();
}

TEST_F(StagingLimits, Tokens) {
  EXPECT_FAILS(host.ring.stage(tables, grow({{a, 20}, {b, 21}})), exhausted, workspace);
  expect_first_step_is_there();
}

TEST_F(StagingLimits, BlocksOfARow) {
  const Status status = host.ring.stage(tables, grow({{b, 33}}));
  EXPECT_FAILS(status, exhausted, workspace);
  EXPECT_EQ(status.required, 9U);
  EXPECT_EQ(status.available, 8U);
  EXPECT_EQ(status.subject, 1U) << "b's table row";
  expect_first_step_is_there();
}

TEST_F(StagingLimits, ChangedEntries) {
  EXPECT_FAILS(host.ring.stage(tables, grow({{a, 20}, {b, 16}})), exhausted, workspace);
  expect_first_step_is_there();
}

TEST_F(StagingLimits, TableRows) {
  const SequenceId fourth = *tables.create_sequence();
  EXPECT_FAILS(host.ring.stage(tables, grow({{fourth, 1}})), exhausted, workspace);
  expect_first_step_is_there();
}

TEST_F(StagingLimits, WhatWasRefusedIsSentWhenItFits) {
  EXPECT_FAILS(host.ring.stage(tables, grow({{a, 20}, {b, 16}})), exhausted, workspace);
  ASSERT_OK(host.ring.stage(tables, grow({{a, 1}})));
  host.ring.advance();
  host.launch();
  ASSERT_OK(host.ring.stage(tables, grow({{b, 1}})));
  host.launch();
  const StepArrays arrays = host.arrays();
  for (std::int64_t j = 0; j < 6; ++j) {
    const auto at = static_cast<std::size_t>(j);
    EXPECT_EQ(arrays.block_tables[at], tables.lookup(a, j).value());
    if (j == 5) continue;
    EXPECT_EQ(arrays.block_tables[static_cast<std::size_t>(host.plan.shape.table_stride) + at],
              tables.lookup(b, j).value());
  }
}

TEST_F(StagingLimits, RowsThatTheseTablesDidNotReport) {
  BlockTables silent = BlockTables::create(manager, {.block_size_tokens = 4}).value();
  const AppendDemand one{*silent.create_sequence(), 1};
  EXPECT_FAILS(host.ring.stage(silent, *silent.append(std::span(&one, 1))), failed_precondition,
               sequence);
  const AppendResult old = grow({{b, 9}});
  ASSERT_OK(tables.destroy(b));
  EXPECT_FAILS(host.ring.stage(tables, old), failed_precondition, sequence);
  expect_first_step_is_there();
}

// ---- rows that nobody staged --------------------------------------------------------------------

TEST(StagedRows, ThatMakeNoSenseAreSkipped) {
  const kernels::StepShape shape{.max_rows = 4,
                                 .max_tokens = 100,
                                 .max_changes = 10,
                                 .max_sequences = 6,
                                 .max_blocks_a_row = 5,
                                 .block_size = 4};
  EXPECT_EQ(plan_row(shape, {5, 17, 17, 5}).num_blocks, 5);
  EXPECT_EQ(plan_row(shape, {0, 0, 0, 0}).slot, 0);
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
    EXPECT_EQ(plan.slot, -1) << row.slot << " " << row.seq_len;
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
  const std::int64_t bytes[] = {
      24 * plan.shape.table_stride * 4, 20 * 4, 300 * 8, 20 * 8, 20 * 8, 20 * 4, 20 * 4, 21 * 8,
      sizeof(kernels::ScatterState)};
  for (std::size_t i = 0; i + 1 < std::size(starts); ++i) {
    EXPECT_LE(starts[i] + bytes[i], starts[i + 1]) << i;
    EXPECT_EQ(starts[i] % 256, 0) << i;
  }
  EXPECT_EQ(plan.zeros, plan.row_offsets);
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
  EXPECT_FAILS(refused([](auto& o) { o.limits.steps_in_flight = 0; }), invalid_argument, event);
  EXPECT_FAILS(refused([](auto& o) { o.limits.max_rows = 0; }), invalid_argument, num_sequences);
  EXPECT_FAILS(refused([](auto& o) { o.limits.max_tokens = (std::int64_t{1} << 30) + 1; }),
               invalid_argument, num_tokens);
  EXPECT_FAILS(refused([](auto& o) { o.limits.max_blocks = 0; }), invalid_argument, table_page);
  EXPECT_FAILS(refused([](auto& o) { o.max_sequences = 0; }), invalid_argument, num_sequences);
  EXPECT_FAILS(refused([](auto& o) { o.max_sequence_blocks = 0; }), invalid_argument, num_blocks);
  EXPECT_FAILS(refused([](auto& o) { o.block_size_tokens = 65537; }), invalid_argument, block_size);
}

}  // namespace
}  // namespace kvarena
