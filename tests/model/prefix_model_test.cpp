// Block tables with a prefix cache and a naive model of them play the same games; nothing they show
// may differ.
//
// KVARENA_SEED=<n> is the first seed; KVARENA_MODEL_OPS=<n> sets the number of operations of all
// games together; KVARENA_PREFIX_STEPS=<n> the length of the enumerated programs.

#include "model/optimised.hpp"
#include "model/prefix_driver.hpp"
#include "support/environment.hpp"
#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <ostream>
#include <string>

namespace kvarena::model {
namespace {

constexpr std::uint64_t kDefaultOperations = test::kSanitized   ? 300'000
                                             : test::kOptimised ? 10'000'000
                                                                : 2'000'000;
constexpr std::int64_t kOperationsOfGame = 3000;

struct Table {
  const char* name;
  std::int64_t num_blocks;
  std::int32_t block_size;
  std::int32_t max_sequences;
  DuplicateRule duplicates;
  std::int32_t alphabet;
  std::int32_t longest;
  bool has_outsiders;
  bool has_limits = false;
  bool shares_parts = false;
  EvictionPolicy eviction = EvictionPolicy::tail_first;
};

using enum EvictionPolicy;

constexpr Table kTables[] = {
    {"ThreeBlocks", 3, 2, 4, DuplicateRule::duplicate, 2, 7, true},
    {"Duplicates", 14, 2, 6, DuplicateRule::duplicate, 2, 12, true},
    {"Shared", 14, 2, 6, DuplicateRule::share, 2, 12, true},
    {"SharedAlone", 20, 3, 6, DuplicateRule::share, 2, 20, false},
    {"Waiting", 14, 2, 6, DuplicateRule::wait, 2, 12, true},
    {"OneToken", 24, 1, 5, DuplicateRule::duplicate, 2, 9, true},
    {"Alone", 24, 4, 8, DuplicateRule::duplicate, 2, 24, false},
    {"ManyTokens", 40, 2, 8, DuplicateRule::share, 5, 30, true},
    {"Limits", 14, 2, 6, DuplicateRule::duplicate, 2, 12, true, true},
    {"LimitsShared", 24, 2, 6, DuplicateRule::share, 3, 16, true, true},
    {"LimitsAlone", 20, 1, 6, DuplicateRule::duplicate, 2, 12, false, true},
    {"Parts", 14, 3, 6, DuplicateRule::duplicate, 2, 16, true, false, true},
    {"PartsShared", 20, 4, 6, DuplicateRule::share, 2, 18, true, false, true, lfu},
    {"PartsLimits", 14, 3, 6, DuplicateRule::wait, 2, 16, true, true, true},
    {"HeadFirst", 12, 2, 6, DuplicateRule::duplicate, 2, 12, true, false, false, head_first},
    {"Fifo", 12, 2, 6, DuplicateRule::share, 2, 12, true, false, false, fifo},
    {"Lfu", 12, 2, 6, DuplicateRule::duplicate, 2, 12, true, false, false, lfu},
    {"Priority", 12, 2, 6, DuplicateRule::duplicate, 2, 12, true, false, false, priority},
    {"PriorityLimits", 16, 3, 6, DuplicateRule::share, 2, 16, true, true, true, priority},
};

void PrintTo(const Table& table, std::ostream* out) { *out << table.name; }

PrefixGame game_of(const Table& table, std::uint64_t seed) {
  return {.name = table.name,
          .num_blocks = table.num_blocks,
          .block_size = table.block_size,
          .max_sequences = table.max_sequences,
          .duplicates = table.duplicates,
          .alphabet = table.alphabet,
          .longest = table.longest,
          .has_outsiders = table.has_outsiders,
          .has_limits = table.has_limits,
          .shares_parts = table.shares_parts,
          .eviction = table.eviction,
          .hash_key = {seed, 1},
          .seed = seed};
}

class PrefixModelTest : public ::testing::TestWithParam<Table> {};

TEST_P(PrefixModelTest, NothingDiffers) {
  const std::uint64_t first = test::number_from_environment("KVARENA_SEED", 1);
  const std::uint64_t all = test::number_from_environment("KVARENA_MODEL_OPS", kDefaultOperations);
  const auto of_game = static_cast<std::int64_t>(all / std::size(kTables));
  for (std::int64_t played = 0; played < of_game; played += kOperationsOfGame) {
    const auto seed = first + static_cast<std::uint64_t>(played / kOperationsOfGame);
    PrefixDriver driver(game_of(GetParam(), seed));
    ASSERT_EQ(driver.play(kOperationsOfGame), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Games, PrefixModelTest, ::testing::ValuesIn(kTables),
                         [](const auto& game) { return std::string(game.param.name); });

// The games are worth nothing if some outcome never happens in them.
TEST(PrefixModelGames, EveryOutcomeHappens) {
  std::map<std::string, std::uint64_t> outcomes;
  for (const Table& table : kTables) {
    PrefixDriver driver(game_of(table, 3));
    ASSERT_EQ(driver.play(test::kSanitized ? 2000 : 10'000), "");
    for (const auto& [outcome, count] : driver.outcomes()) outcomes[outcome] += count;
  }
  for (const char* outcome : {"create_sequence: ok",
                              "create_sequence: failed_precondition",
                              "append: ok",
                              "append: exhausted",
                              "append_one_each: ok",
                              "register_tokens: ok",
                              "register_tokens: invalid_argument",
                              "fork: ok",
                              "truncate: ok",
                              "destroy: ok",
                              "pin: ok",
                              "forget: ok",
                              "forget_all: ok",
                              "forget_salt: ok",
                              "quarantine: ok",
                              "stop: capped",
                              "stop: less_than_a_block",
                              "stop: never_seen",
                              "stop: evicted",
                              "stop: other_salt",
                              "stop: other_extra_key",
                              "stop: not_yet_published",
                              "removal: evicted",
                              "removal: parent_removed",
                              "removal: forgotten",
                              "removal: lost",
                              "removal: over_cap",
                              "set_salt_limits: ok",
                              "set_retention: ok",
                              "advance_clock: ok",
                              "part",
                              "kept"}) {
    EXPECT_GT(outcomes[outcome], 0U) << outcome << " never happened";
  }
}

/// Plays every program of the given length and compares at its end, in the order of its numbers. A
/// program that begins with a step that does nothing is a shorter one.
void enumerate(DuplicateRule duplicates, int length,
               void (PrefixDriver::*step)(int) = &PrefixDriver::step) {
  PrefixDriver driver({.name = "Enumeration",
                       .num_blocks = 3,
                       .block_size = 2,
                       .max_sequences = 3,
                       .duplicates = duplicates});
  std::vector<int> program(static_cast<std::size_t>(length));
  for (bool more = true; more;) {
    for (const int number : program) (driver.*step)(number);
    driver.compare();
    driver.clear();
    std::string text;
    for (const int number : program) text += std::to_string(number);
    ASSERT_EQ(driver.failure(), "") << "program " << text;
    more = false;
    for (std::size_t place = program.size(); place-- > 0 && !more;) {
      const int end = place == 0 ? PrefixDriver::kNumBeginnings : PrefixDriver::kNumSteps;
      more = ++program[place] < end;
      if (!more) program[place] = 0;
    }
  }
}

TEST(PrefixEnumeration, EveryProgramOnThreeBlocks) {
  const auto length = static_cast<int>(
      test::number_from_environment("KVARENA_PREFIX_STEPS", test::kSanitized ? 5 : 7));
  for (int shorter = 1; shorter <= length && !HasFatalFailure(); ++shorter) {
    enumerate(DuplicateRule::duplicate, shorter);
    if (!HasFatalFailure()) enumerate(DuplicateRule::share, shorter);
    if (!HasFatalFailure()) enumerate(DuplicateRule::wait, shorter);
  }
}

TEST(PrefixEnumeration, EveryProgramOfOtherOperations) {
  const auto length = static_cast<int>(
      test::number_from_environment("KVARENA_PREFIX_STEPS", test::kSanitized ? 4 : 6));
  for (int shorter = 1; shorter <= length && !HasFatalFailure(); ++shorter) {
    for (const DuplicateRule rule :
         {DuplicateRule::duplicate, DuplicateRule::share, DuplicateRule::wait}) {
      if (!HasFatalFailure()) enumerate(rule, shorter, &PrefixDriver::other_step);
    }
  }
}

}  // namespace
}  // namespace kvarena::model
