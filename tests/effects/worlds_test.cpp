// The worlds themselves: programs reach what they are meant to reach, the same seed gives the same
// program and the same end, and the judge of recycled blocks sees what it is there for.

#include "effects/cache_world.hpp"
#include "effects/prefix_world.hpp"
#include "effects/shrink.hpp"
#include "effects/step_world.hpp"
#include "effects/tables_world.hpp"

#include "kvarena/base/violation.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

namespace kvarena::test {
namespace {

class WorldsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    former_ = set_violation_handler([](const Status&, const char*, const char*) {});
  }
  void TearDown() override { set_violation_handler(former_); }

  static Program program_of(const World& world, std::uint64_t number) {
    std::mt19937_64 random(number);
    return random_program(random, world.weights, 200);
  }
  /// Plays programs and expects each of the phrases in one of their stories.
  static void expect_told(const World& world, std::uint64_t programs,
                          std::initializer_list<const char*> phrases) {
    std::string story;
    for (std::uint64_t number = 0; number < programs; ++number) {
      static_cast<void>(world.play(program_of(world, number), &story));
    }
    for (const char* phrase : phrases) {
      EXPECT_NE(story.find(phrase), std::string::npos) << world.name << ": " << phrase;
    }
  }

 private:
  ViolationHandler former_ = nullptr;
};

TEST_F(WorldsTest, ProgramsOfTablesReachEveryOutcome) {
  expect_told(tables_world(), 300,
              {"copies block",
               "is destroyed, against the ticket",
               "is destroyed with others, against the ticket",
               "is truncated to",
               "reserves capacity",
               "is promised capacity",
               "retains block",
               "takes block",
               "releases it, against the ticket",
               "cannot release it",
               "is published",
               "is taken back",
               "is revived and read",
               "tokens is imported",
               "is published",
               "the import of sequence",
               "fails",
               "fork of an import is refused: failed_precondition",
               "append to an import is refused: failed_precondition",
               "import_sequence is refused: exhausted block",
               "block(s) of sequence",
               "reads its blocks and ends, against the ticket",
               "cannot be revived",
               "keeps it",
               "is quarantined",
               "is restored",
               "reads outsider",
               "retires",
               "append is refused: exhausted block",
               "append is refused: context_length_exceeded",
               "destroy is refused: exhausted fence_entry",
               "open_ticket is refused: exhausted ticket",
               "fork is refused: exhausted sequence",
               "retire of another manager's ticket",
               "release by a stale handle"});
}

TEST_F(WorldsTest, ProgramsOfCachesReachEveryOutcome) {
  expect_told(cache_world(), 1000,
              {"is destroyed, against the ticket",
               "tokens is imported",
               "is published",
               "the import of sequence",
               "import_sequence is refused: exhausted block",
               "pin is refused: failed_precondition sequence",
               "import behind an append is refused: failed_precondition step",
               " holds sequence ",
               "reads its blocks and ends, against the ticket",
               "is truncated to",
               "a step begins",
               "a step begins on another stream",
               "the step ends",
               "begin_step fails",
               "end_step fails",
               "write_kv fails",
               "append fails: ",
               ", and is called again",
               "the step is aborted, its append",
               "the step is aborted, it had no append",
               "abort_step fails",
               "are written",
               "attend without write_kv is refused: failed_precondition",
               "attention of layer",
               "the work of the step fails, with its copies",
               "the cache takes the failure",
               "the engine takes the failure",
               "open reader",
               "elsewhere",
               "on stream 3",
               "open_ticket is refused: exhausted ticket",
               "retire is refused: failed_precondition ticket",
               "the engine retires the ticket",
               "retire of another cache's ticket",
               "publishes",
               "publish fails",
               "begins with 0 of",
               "begins with 4 of",
               "begins with 8 of",
               ": capped",
               ": less_than_a_block",
               ": never_seen",
               ": evicted",
               ": other_salt",
               ": other_extra_key",
               "a part of a block among them",
               ", evicts lfu",
               ": not_yet_published",
               "a prompt is refused: failed_precondition content",
               "register_tokens behind an append is refused",
               "are told late",
               "are forgotten",
               " has a floor of 2 and no cap",
               " has a floor of 0 and a cap of 1",
               "set_salt_limits is refused: invalid_argument",
               ": evicted, over the cap",
               "has retired",
               "but there is no ticket",
               "fork is refused: exhausted sequence",
               "fence is refused: device_error",
               "will fail",
               "retires eagerly",
               "runs",
               "fence of another device's stream",
               "against another cache's ticket"});
}

TEST_F(WorldsTest, ProgramsOfStepsReachEveryOutcome) {
  expect_told(
      step_world(), 300,
      {"is forked", "is truncated", "is destroyed", "of 4 row(s)", "LOST",
       "is staged and withdrawn", "launched late", "is taken back",
       "goes on from what the device took last", "a launch runs that no step was staged for"});
}

TEST_F(WorldsTest, ProgramsOfPrefixPoolsReachEveryOutcome) {
  expect_told(prefix_world(), 400,
              {"begins with 0 of",
               "begins with 4 of",
               "begins with 8 of",
               ": capped",
               ": less_than_a_block",
               ": never_seen",
               ": evicted",
               ": other_salt",
               ": other_extra_key",
               ": not_yet_published",
               "adopt is refused: failed_precondition content",
               "is forked into",
               "is truncated to",
               "is destroyed",
               "3 evicted",
               "by a transfer",
               "registers 0 of 1",
               "register_blocks is refused: stale_handle",
               "publishes 3 block(s)",
               "other tokens, forgotten",
               "other tokens, taken back",
               "the write of block",
               "are forgotten",
               "an outsider takes",
               "its ticket retires",
               "the engine tells what it allocates and releases never",
               "publish by a stale handle is refused",
               "behind no position is refused",
               "of half a block is refused",
               "that nobody holds is refused",
               "of a block twice is refused",
               "that is none is refused"});
}

TEST_F(WorldsTest, TheSameProgramEndsTheSame) {
  for (const World* world : {&tables_world(), &cache_world(), &step_world(), &prefix_world()}) {
    for (std::uint64_t number = 0; number < 20; ++number) {
      const Program program = program_of(*world, number);
      ASSERT_EQ(program, program_of(*world, number));
      std::string first;
      std::string second;
      const auto failure = world->play(program, &first);
      EXPECT_EQ(world->play(program, &second).has_value(), failure.has_value());
      EXPECT_EQ(world->play(program, nullptr).has_value(), failure.has_value());
      EXPECT_TRUE(first == second) << world->name << ", program " << number;
    }
  }
}

TEST_F(WorldsTest, ProgramsCanBeEmptyOrOfAnyOperationAlone) {
  for (const World* world : {&tables_world(), &cache_world(), &step_world(), &prefix_world()}) {
    EXPECT_FALSE(world->play({}, nullptr).has_value());
    for (const KindWeight& entry : world->weights) {
      const Program program{.setup = {}, .operations = {{entry.kind, {3, 1, 4, 1}}}};
      EXPECT_FALSE(world->play(program, nullptr).has_value()) << entry.kind;
    }
  }
}

// Nothing is scrubbed unless an option says so: the judge, told to expect it, must find words of
// others in recycled blocks.
TEST_F(WorldsTest, WordsOfOthersInRecycledBlocksAreSeen) {
  const Fails fails = [](const Program& p) {
    const auto failure = play_caches(p, nullptr, true);
    return failure && failure->kind == "scrubbing";
  };
  for (std::uint64_t number = 0; number < 100; ++number) {
    const Program program = program_of(cache_world(), number);
    if (!fails(program)) continue;
    const Program shortest = shrink(program, fails);
    std::string story;
    static_cast<void>(play_caches(shortest, &story, true));
    EXPECT_LE(shortest.operations.size(), 6U) << story;
    return;
  }
  FAIL() << "no program recycled a block";
}

}  // namespace
}  // namespace kvarena::test
