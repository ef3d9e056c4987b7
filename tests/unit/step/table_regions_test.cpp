// Where tables lie in the pool: regions are apart, a step within limits always fits, what is sent
// again is a constant times what was appended, and the device's tables are the real ones after
// every step.

#include "step/table_regions.hpp"

#include "support/status_matchers.hpp"
#include "unit/step/host_tables.hpp"
#include "unit/step/step_game.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

using kernels::StepShape;
using test::HostTables;
using test::StepGame;

constexpr TableFront kMoves = TableFront::moves;

// ---- regions alone ------------------------------------------------------------------------------

StepShape shape_of(std::int32_t sequences, std::int32_t longest, std::int32_t step_blocks,
                   TableFront front = TableFront::stays) {
  StepShape shape{
      .max_changes = step_blocks, .max_sequences = sequences, .max_blocks_a_row = longest};
  shape.table_entries = TableRegions::entries_for(shape, front);
  return shape;
}

TEST(TableRegions, APoolIsForTheLongestTablesOrTwiceWhatAStepCanTakeWhicheverIsLess) {
  EXPECT_EQ(TableRegions::entries_for(shape_of(10, 33, 1'000'000)), 10 * 64);
  EXPECT_EQ(TableRegions::entries_for(shape_of(10, 1'000'000, 1000)), 2 * (2 * 1000 + 32 * 10));
  EXPECT_EQ(TableRegions::entries_for(shape_of(1, 1, 1)), 32);
  EXPECT_EQ(TableRegions::entries_for(shape_of(3, 1000, 7)) % StepShape::kGranule, 0);
  constexpr std::int32_t kMost = 1 << 30;
  EXPECT_EQ(TableRegions::entries_for(shape_of(1 << 24, kMost, kMost)),
            4LL * kMost + 64LL * (1 << 24))
      << "granules are counted in 32 bits";
}

TEST(TableRegions, WhereEverySequenceHasRoomForItsLongestNothingEverMoves) {
  TableRegions regions(shape_of(4, 70, 1000));
  for (int round = 0; round < 50; ++round) {
    for (const std::int32_t slot : {2, 0, 3, 1}) {
      if (round > 0) {
        EXPECT_TRUE(regions.fits(slot, 70));
      }
      regions.place(slot, 1 + round);
      EXPECT_EQ(regions.first_granule(slot), slot * 3);
    }
  }
  EXPECT_EQ(regions.num_restarts(), 0U);
}

TEST(TableRegions, CapacitiesArePowersOfTwoAboveTheBlocks) {
  const std::pair<std::int32_t, std::int32_t> blocks_and_capacity[] = {
      {0, 32},   {1, 32},    {31, 32},   {32, 64},  {63, 64},
      {64, 128}, {100, 128}, {255, 256}, {300, 300}};
  for (const auto& [blocks, capacity] : blocks_and_capacity) {
    TableRegions regions(shape_of(100, 300, 400));
    EXPECT_FALSE(regions.fits(7, 0));
    regions.place(7, blocks);
    EXPECT_TRUE(regions.fits(7, capacity)) << blocks;
    EXPECT_FALSE(regions.fits(7, (capacity + 31) / 32 * 32 + 1)) << blocks;
  }
}

/// Steps of random rows within limits: after a restart all rows of the step fit.
TEST(TableRegions, AStepWithinLimitsAlwaysFitsAndRegionsAreApart) {
  std::mt19937_64 random(5);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(end));
  };
  for (int round = 0; round < 300; ++round) {
    const std::int32_t sequences = 1 + below(40);
    const StepShape shape = shape_of(sequences, 1 + below(2000), 1 + below(3000));
    TableRegions regions(shape);
    for (int step = 0; step < 50; ++step) {
      std::vector<std::pair<std::int32_t, std::int32_t>> rows;  // slot, blocks
      std::int32_t left = shape.max_changes;
      for (std::int32_t slot = 0; slot < sequences; ++slot) {
        const std::int32_t most = std::min(left, shape.max_blocks_a_row);
        const std::int32_t blocks = below(3) == 0 ? most : below(std::min(most, 70) + 1);
        left -= blocks;
        rows.emplace_back(slot, blocks);
      }
      std::shuffle(rows.begin(), rows.end(), random);
      const std::uint64_t before = regions.num_restarts();
      for (int pass = 0; pass < 2; ++pass) {
        for (const auto& [slot, blocks] : rows) {
          if (!regions.fits(slot, blocks)) regions.place(slot, blocks);
        }
      }
      ASSERT_LE(regions.num_restarts(), before + 1) << "round " << round;
      std::sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
        return regions.first_granule(a.first) < regions.first_granule(b.first);
      });
      std::int64_t end = 0;
      for (const auto& [slot, blocks] : rows) {
        const std::int64_t first = regions.first_granule(slot) * StepShape::kGranule;
        ASSERT_TRUE(regions.fits(slot, blocks));
        ASSERT_GE(first, end);
        end = first + std::max(blocks, 1);
      }
      ASSERT_LE(end, shape.table_entries);
    }
  }
}

/// Rows that keep the last of their blocks: the regions of their entries are apart, and no table
/// begins in front of the pool.
TEST(TableRegions, AStepOfTablesThatLoseTheirFrontsAlwaysFits) {
  std::mt19937_64 random(6);
  const auto below = [&](std::int64_t end) {
    return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(end));
  };
  struct Row {
    std::int32_t slot;
    std::int32_t first;
    std::int32_t blocks;
  };
  std::uint64_t num_restarts = 0;
  for (int round = 0; round < 400; ++round) {
    const std::int32_t sequences = 1 + below(40);
    const StepShape shape =
        shape_of(sequences, 1 + below(3000), 1 + below(round % 2 == 0 ? 60 : 3000), kMoves);
    const std::int32_t usual = 1 + below(2 * shape.max_changes / sequences + 2);
    TableRegions regions(shape, kMoves);
    std::vector<std::int32_t> lengths(static_cast<std::size_t>(sequences));
    for (int step = 0; step < 60; ++step) {
      std::vector<Row> rows;
      std::int32_t left = shape.max_changes;
      for (std::int32_t slot = 0; slot < sequences; ++slot) {
        std::int32_t& length = lengths[static_cast<std::size_t>(slot)];
        length = below(9) == 0 ? below(3) : length + below(3) * below(40);
        length = std::min(length, shape.max_blocks_a_row);
        const std::int32_t kept = std::min({left, length, below(7) == 0 ? left : usual});
        left -= kept;
        rows.push_back({slot, length - kept, length});
      }
      std::shuffle(rows.begin(), rows.end(), random);
      const std::uint64_t before = regions.num_restarts();
      for (int pass = 0; pass < 2; ++pass) {
        for (const Row& its : rows) {
          if (!regions.fits(its.slot, its.blocks, its.first)) {
            regions.place(its.slot, its.blocks, its.first);
          }
        }
      }
      ASSERT_LE(regions.num_restarts(), before + 1) << "round " << round;
      num_restarts += regions.num_restarts() - before;
      const auto begin_of = [&](const Row& its) {
        return regions.first_granule(its.slot) * StepShape::kGranule + its.first;
      };
      std::ranges::sort(rows, {}, begin_of);
      std::int64_t end = 0;
      for (const Row& its : rows) {
        ASSERT_TRUE(regions.fits(its.slot, its.blocks, its.first));
        ASSERT_GE(regions.first_granule(its.slot), 0);
        if (its.first == its.blocks) continue;
        ASSERT_GE(begin_of(its), end);
        end = begin_of(its) + its.blocks - its.first;
      }
      ASSERT_LE(end, shape.table_entries);
    }
  }
  EXPECT_GT(num_restarts, 1000U);
}

TEST(TableRegions, ATableThatLosesItsFrontHasEntriesForTheRestAlone) {
  // The lead is as long as the longest table, and behind it is room for the kept blocks of a step.
  const StepShape shape = shape_of(10, 8192, 100, kMoves);
  EXPECT_EQ(shape.table_entries, 8192 + 10 * 192 + 320);
  EXPECT_EQ(shape_of(10, 64, 1000, kMoves).table_entries, 10 * 64);
  TableRegions regions(shape, kMoves);
  regions.place(3, 4001, 4000);
  EXPECT_EQ(regions.first_granule(3), (8192 - 4000) / 32);
  EXPECT_TRUE(regions.fits(3, 4064, 4000));
  EXPECT_FALSE(regions.fits(3, 4065, 4064)) << "it moves on";
  EXPECT_FALSE(regions.fits(3, 4001, 3999)) << "another sequence has its front";
  regions.place(5, 1);
  EXPECT_EQ(regions.first_granule(5), (8192 + 64) / 32);
  EXPECT_TRUE(regions.fits(5, 64));
}

// ---- tables in a small pool ---------------------------------------------------------------------

class PooledGame : public ::testing::TestWithParam<std::int32_t> {};

/// Sequences whose tables together are more than the pool holds take turns.
TEST_P(PooledGame, ArraysEqualTheTablesAfterEveryStep) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const DeviceTablesOptions options = test::pooled_tables(GetParam(), 3);
    StepGame game({.seed = seed, .num_blocks = 900, .longest_chunk = 60, .tables = options});
    HostTables host(options);
    for (int step = 0; step < 3000; ++step) {
      const AppendResult appended = game.next();
      ASSERT_OK(host.stage(game.tables(), appended));
      if (game.one_in(8)) host.withdraw(game.tables());
      if (game.one_in(8)) continue;  // the next one takes its place
      if (host.ring.expected() == 0) continue;
      host.launch_and_run();
      ASSERT_EQ(host.difference(game.expected()), "") << "seed " << seed << " step " << step;
      host.advance();
      if (game.one_in(100)) host.resync(game.tables());
    }
    EXPECT_EQ(host.misses(), 0U);
    EXPECT_GT(host.ring.regions().num_restarts(), 20U);
  }
}

INSTANTIATE_TEST_SUITE_P(BlockSizes, PooledGame, ::testing::Values(1, 3),
                         ::testing::PrintToStringParamName());

/// Sequences that grow by a block a step, each to a length of its own, and then begin anew.
class Turnover {
 public:
  Turnover(const DeviceTablesOptions& options, std::int64_t all_blocks)
      : options_(options),
        manager_(
            BlockManager::create({.num_blocks = all_blocks, .max_holders = options.max_sequences})
                .value()),
        tables_(BlockTables::create(manager_, {.block_size_tokens = 1,
                                               .max_sequences = options.max_sequences,
                                               .report_rows = true})
                    .value()),
        host_(options) {}

  /// `first` and `last` length of sequence number n.
  template <class First, class Last>
  void play(int steps, First first, Last last) {
    std::vector<SequenceId> ids(static_cast<std::size_t>(options_.max_sequences));
    std::vector<std::int64_t> ends(ids.size());
    std::uint64_t n = 0;
    for (int step = 0; step < steps; ++step) {
      std::vector<AppendDemand> demands;
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == kNoSequence || tables_.info(ids[i])->length_tokens >= ends[i]) {
          if (ids[i] != kNoSequence) static_cast<void>(tables_.destroy(ids[i]));
          ids[i] = tables_.create_sequence().value();
          ends[i] = last(++n);
          demands.push_back({ids[i], first(n)});
        } else {
          demands.push_back({ids[i], 1});
        }
      }
      const AppendResult appended = tables_.append(demands).value();
      for (const AppendedRow& row : appended.rows) num_needed += row.num_changed_blocks;
      ASSERT_OK(host_.stage(tables_, appended));
      num_sent += host_.num_sent();
      host_.launch_and_run();
      host_.advance();
    }
    ASSERT_EQ(host_.misses(), 0U);
  }
  std::uint64_t num_restarts() const { return host_.ring.regions().num_restarts(); }
  double sent_again() const {
    return static_cast<double>(num_sent - num_needed) / static_cast<double>(num_needed);
  }

  std::int64_t num_needed = 0;  // table entries that came to be
  std::int64_t num_sent = 0;

 private:
  DeviceTablesOptions options_;
  BlockManager manager_;
  BlockTables tables_;
  HostTables host_;
};

DeviceTablesOptions turnover_options(std::int64_t step_blocks) {
  return {.limits = {.max_rows = 64, .max_tokens = step_blocks, .max_blocks = step_blocks},
          .max_sequences = 64,
          .max_sequence_blocks = 1 << 20,
          .block_size_tokens = 1};
}

TEST(TableTurnover, GrowthSendsATableAgainAFewTimesInItsSlotsLife) {
  Turnover turnover(turnover_options(40'000), 40'000);
  turnover.play(
      3000, [](std::uint64_t) { return 1; },
      [](std::uint64_t n) { return static_cast<std::int64_t>(100 + n * 37 % 500); });
  EXPECT_EQ(turnover.num_restarts(), 0U) << "a slot's region serves its next sequence";
  EXPECT_GT(turnover.sent_again(), 0.0);
  EXPECT_LT(turnover.sent_again(), 1.0);
}

// Every slot has a long table now and then, and the pool does not hold a long one for each.
TEST(TableTurnover, WhatIsSentAgainWhenThePoolBeginsAnewIsAFractionOfWhatWasAppended) {
  Turnover turnover(turnover_options(12'000), 12'000);
  const auto is_long = [](std::uint64_t n) { return n * 37 % 8 == 0; };
  turnover.play(
      6000, [&](std::uint64_t n) { return is_long(n) ? 990 : 1; },
      [&](std::uint64_t n) { return std::int64_t{is_long(n) ? 1000 : 30}; });
  EXPECT_GT(turnover.num_restarts(), 10U);
  EXPECT_GT(turnover.sent_again(), 0.0);
  EXPECT_LT(turnover.sent_again(), 0.5);
  std::cout << "[ FIGURE   ] " << turnover.num_restarts() << " restarts in 6,000 steps, "
            << turnover.num_needed << " entries appended, " << turnover.num_sent << " sent\n";
}

}  // namespace
}  // namespace kvarena
