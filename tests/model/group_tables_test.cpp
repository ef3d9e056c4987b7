// Random operations on sequences with groups, judged by what is found in memory. Faults planted in
// the tables must be found.
//
// KVARENA_SEED=<n> replays one seed in every game; KVARENA_GROUP_OPS=<n> sets the number of
// operations of all games together.

#include "model/group_world.hpp"
#include "model/optimised.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <ostream>

namespace kvarena::model {

void PrintTo(const GroupGame& game, std::ostream* out) { *out << game.name; }

namespace {

constexpr std::uint64_t kDefaultOperations = test::kSanitized   ? 54'000
                                             : test::kOptimised ? 10'000'000
                                                                : 1'000'000;
constexpr auto kFull = PagedKind::full;
constexpr auto kWindow = PagedKind::window;
constexpr auto kChunk = PagedKind::chunk;
constexpr auto kCross = PagedKind::cross;
constexpr auto kState = PagedKind::state;

const std::vector<GroupGame> kGames = {
    {"Gemma", {{kFull, 4}, {kWindow, 4, 16}}, {2, 10}, 40, 60},
    {"GemmaTight", {{kFull, 4}, {kWindow, 4, 16, 5}}, {2, 10}, 40, 24, 6, 200},
    {"WindowAlone", {{kWindow, 4, 9, 3}}, {3}, 36, 12, 5, 300},
    {"WindowOfOne", {{kFull, 4}, {kWindow, 4, 1}}, {1, 1}, 8, 60},
    {"Chunks", {{kFull, 4}, {kChunk, 4, 32}}, {1, 3}, 36, 60},
    {"ChunksOfOneBlock", {{kChunk, 4, 4}, {kFull, 8}}, {3, 1}, 36, 40, 6, 300},
    {"SizesDiffer", {{kFull, 8}, {kWindow, 2, 7}, {kWindow, 16, 40, 4}}, {1, 3, 2}, 40, 60},
    {"Cross", {{kFull, 4}, {kCross, 4, 20}}, {2, 1}, 40, 50},
    {"CrossAndWindow", {{kCross, 8, 30}, {kWindow, 4, 12}, {kFull, 4}}, {1, 2, 2}, 24, 50},
    {"WithoutUndo", {{kFull, 4}, {kWindow, 4, 16}}, {2, 10}, 40, 40, 8, 400, false},
    {"States",
     {{kFull, 4}, {.kind = kState, .num_parts = 3, .mode = StateMode::read_write}},
     {2, 10},
     40,
     60,
     8,
     300,
     true,
     12},
    {"StatesInPlace",
     {{kFull, 4}, {.kind = kState, .num_parts = 2, .keeps_for_undo = false}},
     {2, 10},
     40,
     44,
     8,
     300,
     true,
     8},
    {"StatesCopied",
     {{kFull, 4}, {.kind = kState, .num_parts = 2}},
     {2, 10},
     40,
     44,
     6,
     300,
     true,
     40},
    {"StatesTakenBack",
     {{kFull, 2},
      {.kind = kState,
       .rollback_tokens = 3,
       .num_parts = 2,
       .mode = StateMode::read_write,
       .keeps_for_undo = false}},
     {2, 5},
     20,
     70,
     6,
     200,
     true,
     4},
    {"StatesTakenBackInPlace",
     {{kFull, 2}, {.kind = kState, .rollback_tokens = 2, .num_parts = 1}},
     {2, 5},
     20,
     70,
     6,
     200,
     true,
     0},
    {"TwoKindsOfStates",
     {{.kind = kState, .num_parts = 2, .keeps_for_undo = false},
      {kWindow, 4, 12},
      {.kind = kState, .rollback_tokens = 2, .num_parts = 3, .mode = StateMode::read_write}},
     {7, 2, 4},
     16,
     110,
     6,
     300,
     true,
     16},
    {"StatesAlone",
     {{.kind = kState, .num_parts = 1, .mode = StateMode::read_write}},
     {4},
     4,
     30,
     8,
     300,
     false,
     5},
    {.name = "CachedGemma",
     .groups = {{kFull, 4}, {kWindow, 4, 16}},
     .token_units = {2, 10},
     .page_units = 40,
     .num_pages = 90,
     .longest = 220,
     .has_prefix_cache = true},
    {.name = "CachedGemmaTight",
     .groups = {{kFull, 4}, {kWindow, 4, 16, 5}},
     .token_units = {2, 10},
     .page_units = 40,
     .num_pages = 30,
     .max_sequences = 5,
     .longest = 220,
     .has_prefix_cache = true},
    {.name = "CachedChunksAndParts",
     .groups = {{kChunk, 4, 16}, {kFull, 4}, {kFull, 4}},
     .token_units = {3, 2, 2},
     .page_units = 36,
     .num_pages = 80,
     .longest = 220,
     .can_undo = false,
     .has_prefix_cache = true},
    {.name = "CachedStates",
     .groups = {{kFull, 4}, {.kind = kState, .num_parts = 3, .mode = StateMode::read_write}},
     .token_units = {2, 10},
     .page_units = 40,
     .num_pages = 90,
     .longest = 220,
     .checkpoint_every = 12,
     .has_prefix_cache = true},
    {.name = "CachedStatesAndWindow",
     .groups =
         {{.kind = kState, .num_parts = 2, .keeps_for_undo = false},
          {kWindow, 4, 12},
          {kFull, 4},
          {.kind = kState, .rollback_tokens = 2, .num_parts = 3, .mode = StateMode::read_write}},
     .token_units = {7, 2, 2, 4},
     .page_units = 16,
     .num_pages = 200,
     .max_sequences = 6,
     .longest = 220,
     .checkpoint_every = 8,
     .has_prefix_cache = true},
    {"LongTables", {{kWindow, 1, 5}, {kFull, 1}}, {1, 1}, 8, 700, 5, 2000},
};

std::uint64_t seed() { return test::number_from_environment("KVARENA_SEED", 20261123); }

class GroupTables : public ::testing::TestWithParam<GroupGame> {};

TEST_P(GroupTables, KeepWhatLaterTokensRead) {
  const std::uint64_t all = test::number_from_environment("KVARENA_GROUP_OPS", kDefaultOperations);
  const auto operations = static_cast<std::int64_t>(all / kGames.size());
  GroupWorld world(GetParam(), seed());
  const auto wrong = world.play(operations);
  EXPECT_FALSE(wrong.has_value()) << *wrong << "; KVARENA_SEED=" << seed();
  for (const char* outcome : {"forked", "cut", "cut with a ticket", "copied", "reserved",
                              "promised", "pinned", "imported", "began from blocks"}) {
    if (operations < 3000) break;
    const bool has_tails = std::ranges::any_of(GetParam().groups, [](const TableGroup& group) {
      return group.kind != kState && group.kind != kCross && group.block_size_tokens > 1;
    });
    if (!has_tails && std::string_view(outcome) == "copied") continue;
    EXPECT_GT(world.outcomes().contains(outcome) ? world.outcomes().at(outcome) : 0, 0) << outcome;
  }
  for (const char* outcome :
       {"prefix hit", "prefix missed", "another group fell short", "refused to another tenant"}) {
    if (operations < 3000 || !GetParam().has_prefix_cache) break;
    EXPECT_GT(world.outcomes().contains(outcome) ? world.outcomes().at(outcome) : 0, 0) << outcome;
  }
  for (const TableGroup& group : GetParam().groups) {
    if (group.kind != kState || operations < 3000) continue;
    const bool loses = GetParam().can_undo && !group.keeps_for_undo && group.rollback_tokens == 0;
    EXPECT_TRUE(world.outcomes().contains("several checkpoints"));
    if (loses) {
      EXPECT_TRUE(world.outcomes().contains("state lost"));
    }
    if (group.mode == StateMode::in_place) {
      EXPECT_TRUE(world.outcomes().contains("state copied"));
      EXPECT_TRUE(world.outcomes().contains("state cleared"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, GroupTables, ::testing::ValuesIn(kGames),
                         [](const auto& tested) { return tested.param.name; });

TEST(GroupTablesFaults, AreFound) {
  for (const GroupGame& game : kGames) {
    const bool slides = std::ranges::any_of(game.groups, [](const TableGroup& group) {
      return (group.kind == kWindow && group.limit_tokens > group.block_size_tokens) ||
             (group.kind == kChunk && group.limit_tokens > group.block_size_tokens);
    });
    if (!slides) continue;
    GroupWorld early(game, seed(), GroupPlant::window_one_block_early);
    EXPECT_TRUE(early.play(20'000).has_value()) << game.name << ": a block leaves too early";
  }
}

TEST(GroupTablesFaults, OfThePrefixCacheAreFound) {
  for (const GroupGame& game : kGames) {
    if (!game.has_prefix_cache) continue;
    GroupWorld swapped(game, seed(), GroupPlant::companion_of_another);
    EXPECT_TRUE(swapped.play(20'000).has_value()) << game.name << ": a window of other tokens";
  }
}

TEST(GroupTablesFaults, OfStatesAreFound) {
  for (const GroupGame& game : kGames) {
    for (const TableGroup& group : game.groups) {
      if (group.kind != kState) continue;
      const bool in_place = group.mode == StateMode::in_place;
      const bool keeps = game.can_undo && group.keeps_for_undo;
      if (in_place) {
        GroupWorld stale(game, seed(), GroupPlant::state_copy_lost);
        EXPECT_TRUE(stale.play(20'000).has_value()) << game.name << ": a stale state is read";
      }
      if (keeps) {
        GroupWorld lost(game, seed(), GroupPlant::state_not_kept);
        EXPECT_TRUE(lost.play(20'000).has_value()) << game.name << ": a state is written over";
      }
      if (!keeps && group.rollback_tokens == 0 && game.groups.size() < 3) {
        GroupWorld rewritten(game, seed(), GroupPlant::checkpoint_rewritten);
        EXPECT_TRUE(rewritten.play(20'000).has_value())
            << game.name << ": a checkpoint is served after it was written over";
      }
    }
  }
}

}  // namespace
}  // namespace kvarena::model
