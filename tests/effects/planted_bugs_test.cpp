// A judge that never complains proves nothing: memories and prefix caches with a planted bug, which
// it must see.

#include "blocktable/prefix_faults.hpp"
#include "effects/cache_world.hpp"
#include "effects/prefix_world.hpp"
#include "effects/shrink.hpp"
#include "effects/simulated_memory.hpp"
#include "effects/tables_world.hpp"

#include "kvarena/base/violation.hpp"

#include <gtest/gtest.h>

#include <array>

namespace kvarena::test {
namespace {

/// Whether the sound memory keeps the promises of some random programs that the one with the bug
/// breaks, and the shortest such program.
std::optional<Program> seen_with(PlantedBug bug) {
  for (std::uint64_t number = 0; number < 2000; ++number) {
    std::mt19937_64 random(number);
    const Program program = random_program(random, tables_world().weights, 100);
    const Fails fails = [bug](const Program& p) {
      return !play_tables(p, nullptr, PlantedBug::none) && play_tables(p, nullptr, bug);
    };
    if (fails(program)) return shrink(program, fails);
  }
  return std::nullopt;
}

void expect_seen(PlantedBug bug, std::size_t longest) {
  const auto program = seen_with(bug);
  ASSERT_TRUE(program.has_value());
  std::string story;
  const auto failure = play_tables(*program, &story, bug);
  ASSERT_TRUE(failure.has_value());
  EXPECT_LE(program->operations.size(), longest) << story << failure->text;
}

TEST(PlantedBugs, ADroppedCopyOnWriteIsSeen) { expect_seen(PlantedBug::drops_copies, 6); }
TEST(PlantedBugs, ALateCopyOnWriteIsSeen) { expect_seen(PlantedBug::copies_after_writes, 6); }
TEST(PlantedBugs, ALostTokenIsSeen) { expect_seen(PlantedBug::drops_last_write, 3); }
TEST(PlantedBugs, AReaderThatDoesNotWaitIsSeen) { expect_seen(PlantedBug::ignores_waits, 5); }

std::optional<Failure> play_with(PrefixFault fault, const World& world, const Program& program,
                                 std::string* story) {
  set_prefix_fault(fault);
  std::optional<Failure> failure = world.play(program, story);
  set_prefix_fault(PrefixFault::none);
  return failure;
}

/// Expects that a world with the fault breaks a promise that the sound one keeps, in a short
/// program.
void expect_seen(PrefixFault fault, const World& world, std::size_t longest) {
  const auto former = set_violation_handler([](const Status&, const char*, const char*) {});
  const Fails fails = [fault, &world](const Program& p) {
    return play_with(fault, world, p, nullptr) && !play_with(PrefixFault::none, world, p, nullptr);
  };
  bool is_seen = false;
  for (std::uint64_t number = 0; number < 2000 && !is_seen; ++number) {
    std::mt19937_64 random(number);
    const Program program = random_program(random, world.weights, 100);
    if (!fails(program)) continue;
    is_seen = true;
    const Program shortest = shrink(program, fails);
    std::string story;
    const auto failure = play_with(fault, world, shortest, &story);
    EXPECT_LE(shortest.operations.size(), longest) << story << failure->text;
  }
  EXPECT_TRUE(is_seen);
  set_violation_handler(former);
}

TEST(PlantedBugs, ABlockThatIsFoundBeforeItIsWrittenIsSeen) {
  expect_seen(PrefixFault::publishes_at_registration, cache_world(), 4);
  expect_seen(PrefixFault::publishes_at_registration, prefix_world(), 12);
}
TEST(PlantedBugs, ATenantWhoFindsBlocksOfAnotherIsSeen) {
  expect_seen(PrefixFault::drops_salts, cache_world(), 4);
  expect_seen(PrefixFault::drops_salts, prefix_world(), 12);
}
TEST(PlantedBugs, FormerTokensOfABlockThatIsRegisteredAgainAreSeen) {
  expect_seen(PrefixFault::compares_stale_tokens, prefix_world(), 12);
}
TEST(PlantedBugs, ABlockThatOthersHaveTakenIsSeen) {
  expect_seen(PrefixFault::misses_evictions, prefix_world(), 12);
}

constexpr std::array<std::int64_t, 2> kSlots = {0, 1};
constexpr std::array<Word, 2> kWords = {7, 8};
constexpr std::array<Word, 2> kOthers = {7, 9};

TEST(SimulatedMemory, RunsEachStreamInOrderAndOthersWheneverTheyLike) {
  SimulatedMemory memory(2, 4, 2);
  memory.write(0, kSlots, kWords);
  memory.read(1, {"reader", 1}, kSlots, kWords);
  memory.write(0, kSlots, kOthers);
  EXPECT_TRUE(memory.run_one(0));
  EXPECT_TRUE(memory.run_one(1));  // between the two writes
  EXPECT_TRUE(memory.run_one(0));
  EXPECT_FALSE(memory.run_one(0));
  EXPECT_FALSE(memory.failure().has_value());
  memory.read(1, {"reader", 1}, kSlots, kWords);
  EXPECT_TRUE(memory.run_one(1));
  ASSERT_TRUE(memory.failure().has_value());
  EXPECT_EQ(memory.failure()->kind, "reader");
  EXPECT_NE(memory.failure()->text.find("promised to be word 8 and is word 9"), std::string::npos);
}

TEST(SimulatedMemory, AWaitHoldsAStreamUntilTheOtherIsThere) {
  SimulatedMemory memory(2, 4, 2);
  memory.write(0, kSlots, kWords);
  memory.wait(1, 0);
  memory.read(1, {"reader", 1}, kSlots, kWords);
  memory.write(0, kSlots, kOthers);
  EXPECT_FALSE(memory.run_one(1));
  memory.run_until(1, memory.position(1));  // runs the first write, not the second
  EXPECT_FALSE(memory.failure().has_value());
  EXPECT_TRUE(memory.run_one(0));
  EXPECT_FALSE(memory.run_one(0));
}

TEST(SimulatedMemory, CopiesWholeBlocksAndSeesWritesOutside) {
  SimulatedMemory memory(2, 4, 1);
  memory.write(0, kSlots, kWords);
  memory.copy(0, {BlockId(0), BlockId(1)});
  constexpr std::array<std::int64_t, 2> kCopied = {4, 5};
  memory.read(0, {"sequence", 1}, kCopied, kWords);
  memory.run_until(0, memory.position(0));
  EXPECT_FALSE(memory.failure().has_value());
  constexpr std::array<std::int64_t, 2> kOutside = {3, 8};
  memory.write(0, kOutside, kWords);
  memory.run_until(0, memory.position(0));
  ASSERT_TRUE(memory.failure().has_value());
  EXPECT_EQ(memory.failure()->kind, "slots");
}

}  // namespace
}  // namespace kvarena::test
