// Sequences that begin with a part of a cached block, and copy it before they go on.

#include "unit/blocktable/prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <array>

namespace kvarena::test {
namespace {

class PrefixPartsTest : public PrefixTest {
 protected:
  /// `count` tokens like tokens(), then others from `place` on.
  static Tokens branch(std::int32_t count, std::int32_t place, std::int32_t other = 1000) {
    Tokens list = tokens(count);
    for (std::int32_t i = place; i < count; ++i) list[static_cast<std::size_t>(i)] = other + i;
    return list;
  }
};

TEST_F(PrefixPartsTest, ASequenceBeginsInsideABlockAndCopiesIt) {
  create_cache({.shares_parts = true});
  const SequenceId first = computed(tokens(12));
  const Numbers its = blocks(first);
  EXPECT_OK(tables().destroy(first));
  const Tokens prompt = branch(12, 6);
  const PrefixMatch found = match(prompt);
  EXPECT_EQ(found.blocks, 1);
  EXPECT_EQ(found.part_tokens, 2);
  EXPECT_EQ(found.tokens, 6);
  EXPECT_EQ(found.registered_tokens, 4);
  EXPECT_EQ(found.stop, PrefixStop::never_seen);
  const SequenceId second = begin(prompt);
  EXPECT_EQ(length(second), 6);
  EXPECT_EQ(tables().info(second)->known_tokens, 6);
  EXPECT_EQ(tables().info(second)->published_blocks, 1);
  EXPECT_EQ(blocks(second), (Numbers{its[0], its[1]}));
  EXPECT_EQ(stats().hit_tokens, 6U);
  EXPECT_EQ(stats().hit_blocks, 1U);
  expect_whole();

  const std::span<const std::int32_t> rest = std::span(prompt).subspan(6);
  const AppendDemand demand{second, 6, {}, rest};
  const AppendResult step = tables().append(std::span(&demand, 1)).value();
  ASSERT_EQ(step.copies.size(), 1U);
  EXPECT_EQ(step.copies[0].source.value, its[1]);
  EXPECT_NE(step.copies[0].target.value, its[1]);
  EXPECT_OK(tables().publish(second));
  EXPECT_EQ(match(branch(13, 6)).blocks, 3);
  EXPECT_EQ(match(tokens(13)).blocks, 3) << "the block that was copied is still what it was";
  expect_whole();
}

TEST_F(PrefixPartsTest, OneTokenIsLeftToComputeOfAPromptThatIsCached) {
  create_cache({.shares_parts = true});
  EXPECT_OK(tables().destroy(computed(tokens(8))));
  const PrefixMatch found = match(tokens(8));
  EXPECT_EQ(found.stop, PrefixStop::capped);
  EXPECT_EQ(found.tokens, 7);
  EXPECT_EQ(match(tokens(6)).tokens, 5) << "also when the rest is less than a block";
  EXPECT_EQ(match(tokens(5)).tokens, 4);
  const SequenceId again = begin(tokens(8));
  append_rest(again, tokens(8));
  EXPECT_OK(tables().publish(again));
  EXPECT_EQ(stats().duplicates, 1U) << "its copy is a block that is registered";
  EXPECT_EQ(stats().registered, 2);
}

TEST_F(PrefixPartsTest, TheLongestOfTheNewestBlocksIsTaken) {
  create_cache({.num_blocks = 32, .block_size = 8, .shares_parts = true});
  // Blocks behind one first block, each equal for one token more than the one before.
  for (std::int32_t i = 0; i < 6; ++i) {
    EXPECT_OK(tables().destroy(computed(branch(16, 9 + i, 100 * (i + 1)))));
  }
  EXPECT_EQ(match(tokens(20)).part_tokens, 6);
  EXPECT_EQ(match(branch(20, 11)).part_tokens, 3);
  // Eight newer ones that are equal for no token hide them.
  for (std::int32_t i = 0; i < 8; ++i) {
    EXPECT_OK(tables().destroy(computed(branch(16, 8, -100 * (i + 1)))));
  }
  EXPECT_EQ(match(tokens(20)).part_tokens, 0);
}

TEST_F(PrefixPartsTest, NothingIsSharedAcrossSalts) {
  create_cache({.shares_parts = true});
  EXPECT_OK(tables().destroy(computed(tokens(12), 1)));
  EXPECT_EQ(match(branch(12, 6), 1).tokens, 6);
  EXPECT_EQ(match(branch(12, 6), 2).tokens, 0);
  EXPECT_OK(tables().destroy(computed(tokens(4), 2)));
  EXPECT_EQ(match(branch(12, 6), 2).tokens, 4) << "its own first block has no such children";
}

TEST_F(PrefixPartsTest, APartEndsWhereExtraKeysDiffer) {
  create_cache({.num_blocks = 32, .block_size = 8, .shares_parts = true});
  const std::array<ExtraKey, 2> keys{{{.key = 7, .first_token = 2}, {.key = 8, .first_token = 12}}};
  EXPECT_OK(tables().destroy(computed(tokens(16), 0, keys)));
  const auto part_of = [this](std::span<const ExtraKey> given) {
    return match(branch(20, 15), 0, given).part_tokens;
  };
  EXPECT_EQ(part_of(keys), 7);
  std::array<ExtraKey, 2> others = keys;
  others[1].key = 9;
  EXPECT_EQ(part_of(others), 4) << "the key of token 12 is another";
  others[1] = {.key = 8, .first_token = 10};
  EXPECT_EQ(part_of(others), 2) << "it begins at token 10";
  EXPECT_EQ(part_of(std::span(keys).first(1)), 4) << "the cached block has a key more";
  others[0].key = 1;
  EXPECT_EQ(part_of(others), 0) << "the block before is another";
}

TEST_F(PrefixPartsTest, OnlyPublishedBlocksAreTaken) {
  create_cache({.shares_parts = true});
  const SequenceId writer = computed(tokens(4));
  append_rest(writer, tokens(8));
  EXPECT_EQ(match(branch(12, 6)).tokens, 4);
  EXPECT_OK(tables().publish(writer));
  EXPECT_EQ(match(branch(12, 6)).tokens, 6);
  EXPECT_OK(manager().quarantine(BlockId(blocks(writer)[1])));
  EXPECT_EQ(match(branch(12, 6)).tokens, 4) << "out of service";
}

TEST_F(PrefixPartsTest, WithoutABlockMoreThereIsNoPart) {
  create_cache({.num_blocks = 3, .shares_parts = true});
  EXPECT_OK(tables().destroy(computed(tokens(8))));
  const Tokens prompt = branch(12, 6);
  EXPECT_EQ(match(prompt).tokens, 6);
  const SequenceId id = begin(prompt);
  EXPECT_EQ(length(id), 4) << "two blocks are to come, and there are two";
  EXPECT_EQ(tables().prefix_of(id)->part_tokens, 0);
  append_rest(id, prompt);
  EXPECT_OK(tables().destroy(id));
  EXPECT_OK(tables().destroy(computed(tokens(8))));
  const SequenceId shorter = begin(branch(8, 6));
  EXPECT_EQ(length(shorter), 6) << "one block is to come, and one more is there";
  append_rest(shorter, branch(8, 6));
  expect_whole();
}

TEST_F(PrefixPartsTest, ABlockInUseCostsNothing) {
  create_cache({.num_blocks = 3, .shares_parts = true});
  const SequenceId first = computed(tokens(8));
  const SequenceId second = begin(branch(8, 6));
  EXPECT_EQ(length(second), 6);
  append_rest(second, branch(8, 6));
  EXPECT_NE(blocks(first)[1], blocks(second)[1]);
}

TEST_F(PrefixPartsTest, APartCanBeForkedCutUndoneAndGivenUp) {
  create_cache({.can_undo = true, .shares_parts = true});
  const SequenceId first = computed(tokens(12));
  const Numbers its = blocks(first);
  EXPECT_OK(tables().destroy(first));
  tables().settle_append();
  const Tokens prompt = branch(12, 6);
  const SequenceId second = begin(prompt);
  const SequenceId child = tables().fork(second, 5).value();
  EXPECT_EQ(tables().info(child)->known_tokens, 5);
  EXPECT_OK(tables().destroy(child));
  append_rest(second, prompt);
  EXPECT_OK(tables().undo_append(false));
  EXPECT_EQ(blocks(second), (Numbers{its[0], its[1]})) << "the copied block is put back";
  EXPECT_EQ(tables().info(second)->known_tokens, 6);
  append_rest(second, prompt);
  EXPECT_OK(tables().undo_append(true));
  EXPECT_NE(blocks(second)[1], its[1]) << "the copy was made, and is kept";
  EXPECT_EQ(length(second), 6);
  tables().settle_append();
  expect_whole();
  EXPECT_OK(tables().truncate(second, 4));
  EXPECT_OK(tables().truncate(second, 0));
  const PrefixMatch found = tables().adopt(second, prompt).value();
  EXPECT_EQ(found.part_tokens, 2);
  EXPECT_OK(tables().destroy(second));
  EXPECT_EQ(match(tokens(13)).blocks, 3);
  expect_whole();
}

TEST_F(PrefixPartsTest, WithoutTheOptionThereIsNone) {
  create_cache({});
  EXPECT_OK(tables().destroy(computed(tokens(12))));
  EXPECT_EQ(match(branch(12, 6)).tokens, 4);
  EXPECT_EQ(match(branch(12, 6)).part_tokens, 0);
}

}  // namespace
}  // namespace kvarena::test
