// Registered blocks while sequences fork, are cut, undone and end, and while others take blocks.

#include "unit/blocktable/prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <array>

namespace kvarena::test {
namespace {

using PrefixLifeTest = PrefixTest;

std::uint64_t removals(const PrefixStats& stats, PrefixRemoval removal) {
  return stats.removals_by[static_cast<std::size_t>(removal)];
}

TEST_F(PrefixLifeTest, DecodedTokensAreRegisteredBlockByBlock) {
  create_cache({});
  const SequenceId id = computed(tokens(6));
  for (std::int32_t token = 7; token <= 12; ++token) {
    EXPECT_OK(tables().append_one_each(std::span(&id, 1), std::span(&token, 1)));
    EXPECT_OK(tables().publish(id));
  }
  EXPECT_EQ(match(tokens(13)).blocks, 3);
  EXPECT_EQ(tables().info(id)->published_blocks, 3);
}

TEST_F(PrefixLifeTest, WithoutItsTokensASequenceRegistersNothingMore) {
  create_cache({});
  const SequenceId id = computed(tokens(6));
  EXPECT_OK(grow(id, 1));
  const std::int32_t token = 8;
  EXPECT_OK(tables().append_one_each(std::span(&id, 1), std::span(&token, 1)));
  EXPECT_EQ(tables().info(id)->known_tokens, 6);
  EXPECT_EQ(tables().info(id)->registered_blocks, 1);
  const Tokens missing = {7, 8};
  EXPECT_OK(tables().register_tokens(id, missing));
  EXPECT_OK(tables().publish(id));
  EXPECT_EQ(match(tokens(9)).blocks, 2);
  EXPECT_REFUSED(tables().register_tokens(id, missing), invalid_argument, num_tokens);
}

TEST_F(PrefixLifeTest, TheTokensOfADemandAreAsManyAsItSays) {
  create_cache({});
  const SequenceId id = begin({});
  const Tokens three = tokens(3);
  const AppendDemand demand{id, 2, {}, three};
  EXPECT_REFUSED(tables().append(std::span(&demand, 1)), invalid_argument, span_size);
  EXPECT_REFUSED(tables().append_one_each(std::span(&id, 1), three), invalid_argument, span_size);
}

TEST_F(PrefixLifeTest, ACutWithinAPublishedBlockGoesToACopy) {
  create_cache({});
  const SequenceId id = computed(tokens(8));
  const Numbers before = blocks(id);
  EXPECT_OK(tables().truncate(id, 6));
  EXPECT_EQ(tables().info(id)->known_tokens, 6);
  Tokens other = tokens(6);
  other.push_back(50);
  other.push_back(51);
  other.push_back(52);
  append_rest(id, other);
  EXPECT_OK(tables().publish(id));
  EXPECT_NE(blocks(id)[1], before[1]);
  EXPECT_EQ(match(tokens(9)).blocks, 2) << "the cut block is as it was";
  EXPECT_EQ(match(other).blocks, 2);
}

TEST_F(PrefixLifeTest, ACutWithinABlockThatIsNotPublishedUnregistersIt) {
  create_cache({});
  const SequenceId id = begin(tokens(12));
  append_rest(id, tokens(12));
  EXPECT_OK(tables().publish(id, 4));
  const Numbers before = blocks(id);
  EXPECT_OK(tables().truncate(id, 7));
  EXPECT_EQ(stats().registered, 1);
  EXPECT_EQ(removals(stats(), PrefixRemoval::aborted), 2U);
  append_rest(id, tokens(9));
  EXPECT_EQ(blocks(id)[1], before[1]) << "it is written in place";
  EXPECT_OK(tables().publish(id));
  EXPECT_EQ(match(tokens(9)).blocks, 2) << "the kept tokens of the block were remembered";
}

TEST_F(PrefixLifeTest, WhatASequenceHasNotPublishedEndsWithIt) {
  create_cache({});
  const SequenceId id = begin(tokens(12));
  append_rest(id, tokens(12));
  EXPECT_OK(tables().publish(id, 8));
  EXPECT_OK(tables().destroy(id));
  EXPECT_EQ(manager().stats().evictable, 2);
  EXPECT_EQ(stats().registered, 2);
  expect_whole();
}

TEST_F(PrefixLifeTest, AForkGoesOnWhereItsParentPublished) {
  create_cache({});
  const SequenceId parent = begin(tokens(11));
  append_rest(parent, tokens(11));
  EXPECT_OK(tables().publish(parent, 8));
  for (const std::int32_t length : {11, 10, 8, 6, 3, 0}) {
    const SequenceId fork = tables().fork(parent, length).value();
    EXPECT_EQ(tables().info(fork)->known_tokens, length) << length;
    Tokens list = tokens(length);
    for (std::int32_t i = 0; i < 10; ++i) list.push_back(100 * length + i);
    append_rest(fork, list);
    EXPECT_OK(tables().publish(fork));
    EXPECT_EQ(match(list).blocks, (length + 9) / 4);
    EXPECT_OK(tables().destroy(fork));
    expect_whole();
  }
  EXPECT_OK(tables().truncate(parent, 5));
  const SequenceId fork = tables().fork(parent, 5).value();
  EXPECT_EQ(tables().info(fork)->known_tokens, 5);
}

TEST_F(PrefixLifeTest, AForkOfWhatIsNotPublishedIsToldAnew) {
  create_cache({});
  const SequenceId parent = begin(tokens(11));
  append_rest(parent, tokens(11));
  const SequenceId fork = tables().fork(parent, 11).value();
  EXPECT_EQ(tables().info(fork)->known_tokens, 0);
  EXPECT_OK(tables().register_tokens(fork, tokens(11)));
  EXPECT_EQ(tables().info(fork)->registered_blocks, 2);
  EXPECT_EQ(stats().duplicates, 0U) << "they are the same blocks";
  EXPECT_OK(tables().publish(fork));
  EXPECT_EQ(match(tokens(11)).blocks, 0) << "the parent writes them";
  EXPECT_OK(tables().publish(parent));
  EXPECT_EQ(match(tokens(11)).blocks, 2);
}

TEST_F(PrefixLifeTest, ADuplicateIsCountedAndKept) {
  create_cache({});
  const SequenceId first = begin(tokens(9));
  const SequenceId second = begin(tokens(9));
  append_rest(first, tokens(9));
  append_rest(second, tokens(9));
  EXPECT_EQ(stats().duplicates, 2U);
  EXPECT_EQ(stats().registered, 2);
  EXPECT_OK(tables().publish(first));
  EXPECT_OK(tables().publish(second));
  EXPECT_NE(blocks(first)[0], blocks(second)[0]);
  EXPECT_OK(tables().destroy(second));
  EXPECT_EQ(manager().stats().evictable, 0);
  EXPECT_EQ(match(tokens(9)).blocks, 2);
}

TEST_F(PrefixLifeTest, ADuplicateIsGivenUpForTheFirst) {
  create_cache({.duplicates = DuplicateRule::share});
  const SequenceId first = begin(tokens(9));
  const SequenceId second = begin(tokens(10));
  append_rest(first, tokens(9));
  append_rest(second, tokens(10));
  EXPECT_OK(tables().publish(first));
  EXPECT_OK(tables().publish(second));
  EXPECT_EQ(stats().shared, 2U);
  EXPECT_EQ(blocks(first)[0], blocks(second)[0]);
  EXPECT_EQ(blocks(first)[1], blocks(second)[1]);
  EXPECT_NE(blocks(first)[2], blocks(second)[2]);
  EXPECT_EQ(manager().stats().referenced, 4);
  EXPECT_EQ(tables().changed_blocks(1), 3) << "the mirror learns of it";
}

TEST_F(PrefixLifeTest, ACutBehindAGivenUpBlockWritesToThatOne) {
  create_cache({.duplicates = DuplicateRule::share});
  const SequenceId first = begin(tokens(9));
  const SequenceId second = begin(tokens(9));
  append_rest(first, tokens(8));
  append_rest(second, tokens(8));
  EXPECT_OK(tables().publish(first));
  EXPECT_OK(tables().publish(second));
  EXPECT_OK(tables().truncate(second, 7));
  const Tokens one = {50};
  const AppendDemand demand{second, 1, {}, one};
  const Result<AppendResult> grown = tables().append(std::span(&demand, 1));
  ASSERT_TRUE(grown.is_ok());
  ASSERT_EQ(grown->copies.size(), 1U) << "the shared block is not written";
  EXPECT_EQ(grown->copies[0].source.value, blocks(first)[1]);
  EXPECT_EQ(grown->slots[0], blocks(second)[1] * 4 + 3);
}

TEST_F(PrefixLifeTest, UnderTheRuleWaitTheSecondIsRefusedUntilThen) {
  create_cache({.duplicates = DuplicateRule::wait});
  const SequenceId first = begin(tokens(9));
  append_rest(first, tokens(9));
  const Tokens list = tokens(10);
  EXPECT_REFUSED(tables().create_sequence({.tokens = list}), failed_precondition, content);
  EXPECT_OK(tables().publish(first));
  EXPECT_EQ(length(begin(list)), 8);
}

TEST_F(PrefixLifeTest, AnUndoneAppendIsUnregistered) {
  create_cache({.can_undo = true});
  const SequenceId id = computed(tokens(6));
  append_rest(id, tokens(13));
  EXPECT_OK(tables().publish(id));
  EXPECT_EQ(match(tokens(14)).blocks, 3);
  EXPECT_OK(tables().undo_append(false));
  EXPECT_EQ(tables().info(id)->known_tokens, 6);
  EXPECT_EQ(match(tokens(14)).blocks, 1);
  EXPECT_EQ(stats().registered, 1);
  EXPECT_EQ(removals(stats(), PrefixRemoval::aborted), 2U);
  expect_whole();
  append_rest(id, tokens(13));
  EXPECT_OK(tables().publish(id));
  EXPECT_EQ(match(tokens(14)).blocks, 3);
}

TEST_F(PrefixLifeTest, WhatDependsOnABlockGoesWithIt) {
  create_cache({});
  const SequenceId first = computed(tokens(12));
  const SequenceId fork = tables().fork(first, 8).value();
  Tokens other = tokens(8);
  for (std::int32_t i = 0; i < 5; ++i) other.push_back(60 + i);
  append_rest(fork, other);
  EXPECT_OK(tables().publish(fork));
  EXPECT_EQ(stats().registered, 4);
  EXPECT_OK(tables().forget(first));
  EXPECT_EQ(stats().registered, 0);
  EXPECT_EQ(removals(stats(), PrefixRemoval::parent_removed), 3U);
  expect_whole();
  append_rest(fork, [&] {
    Tokens longer = other;
    for (std::int32_t i = 0; i < 5; ++i) longer.push_back(70 + i);
    return longer;
  }());
  EXPECT_EQ(tables().info(fork)->known_tokens, 0) << "its chain is broken";
  EXPECT_EQ(stats().broken_chains, 1U);
  EXPECT_OK(tables().register_tokens(fork, other));
  EXPECT_OK(tables().publish(fork));
  EXPECT_EQ(match(other).blocks, 3);
}

TEST_F(PrefixLifeTest, APinnedTailWithoutItsHeadIsForgotten) {
  create_cache({.num_blocks = 3});
  const SequenceId first = computed(tokens(12));
  const HolderId pin = tables().pin(first, {.first_block = 1, .num_blocks = 1}).value();
  EXPECT_OK(tables().destroy(first));
  const SequenceId other = sequence(8);  // the tail, then the head; the pinned block stays
  EXPECT_EQ(stats().registered, 0);
  EXPECT_EQ(match(tokens(13)).blocks, 0);
  expect_whole();
  EXPECT_OK(tables().unpin(pin));
  EXPECT_EQ(manager().stats().free, 1);
  EXPECT_OK(tables().destroy(other));
}

TEST_F(PrefixLifeTest, BlocksThatOthersTakeAreNeverMatched) {
  create_cache({.num_blocks = 4});
  const SequenceId first = computed(tokens(12));
  const Numbers its = blocks(first);
  EXPECT_OK(tables().destroy(first));
  EXPECT_OK(manager().quarantine(BlockId(its[2])));
  EXPECT_EQ(match(tokens(13)).blocks, 2);
  EXPECT_EQ(match(tokens(13)).removal, PrefixRemoval::lost);
  EXPECT_OK(manager().restore(BlockId(its[2])));
  EXPECT_EQ(match(tokens(13)).blocks, 2);
  const SequenceId second = computed(tokens(13));
  EXPECT_EQ(match(tokens(13)).blocks, 3);
  expect_whole();
  EXPECT_OK(tables().destroy(second));
}

TEST_F(PrefixLifeTest, AQuarantinedBlockIsNotMatchedWhileItIsHeld) {
  create_cache({});
  const SequenceId first = computed(tokens(12));
  EXPECT_OK(manager().quarantine(tables().lookup(first, 1).value()));
  EXPECT_EQ(match(tokens(13)).blocks, 1);
  const SequenceId second = computed(tokens(13));
  EXPECT_NE(blocks(first)[1], blocks(second)[1]);
  EXPECT_OK(tables().destroy(first));
  EXPECT_OK(tables().destroy(second));
  expect_whole();
}

TEST_F(PrefixLifeTest, ImportsAreToldAfterTheyArePublished) {
  create_cache({});
  const SequenceId import = tables().import_sequence(9).value();
  EXPECT_REFUSED(tables().register_tokens(import, tokens(9)), failed_precondition, sequence);
  EXPECT_OK(tables().publish_import(import));
  EXPECT_OK(tables().register_tokens(import, tokens(9)));
  EXPECT_OK(tables().publish(import));
  EXPECT_OK(tables().destroy(import));
  EXPECT_EQ(match(tokens(9)).blocks, 2);
  const Tokens list = tokens(3);
  EXPECT_REFUSED(tables().import_sequence(9, {.tokens = list}), invalid_argument, none);
}

TEST_F(PrefixLifeTest, ImportsHaveASaltAndExtraKeys) {
  create_cache({});
  const Tokens list = tokens(9);
  const std::array<ExtraKey, 1> keys{{{.key = 5, .first_token = 2}}};
  const SequenceId import = tables().import_sequence(9, {.salt = 7, .extra_keys = keys}).value();
  EXPECT_OK(tables().publish_import(import));
  EXPECT_OK(tables().register_tokens(import, list));
  EXPECT_OK(tables().publish(import));
  EXPECT_EQ(match(list).blocks, 0);
  EXPECT_EQ(match(list, 7).blocks, 0);
  EXPECT_EQ(match(list, 7, keys).blocks, 2);
  const std::array<ExtraKey, 3> too_many{};
  EXPECT_REFUSED(tables().import_sequence(9, {.extra_keys = too_many}), invalid_argument, none);
  EXPECT_REFUSED(tables().fork(import, 4, {.salt = 7}), invalid_argument, none);
  EXPECT_REFUSED(tables().fork(import, 4, {.extra_keys = keys}), invalid_argument, none);
  expect_whole();
}

TEST_F(PrefixLifeTest, AnAdoptionTakesAllOrNothing) {
  create_cache({.num_blocks = 4});
  EXPECT_OK(tables().destroy(computed(tokens(12))));
  const HolderId other = manager().register_holder({.purpose = "other"}).value();
  EXPECT_OK(manager().reserve(other, 3));
  const Tokens list = tokens(13);
  const auto before = picture();
  EXPECT_FAILS(tables().create_sequence({.tokens = list}), exhausted, block);
  EXPECT_TRUE(std::get<1>(before) == std::get<1>(picture()));
  EXPECT_EQ(manager().stats().evictable, 3);
  EXPECT_FAILS(tables().create_sequence({.max_length_tokens = 12, .tokens = list}),
               context_length_exceeded, sequence_length);
  EXPECT_OK(manager().unregister_holder(other));
  const SequenceId empty = tables().create_sequence().value();
  EXPECT_EQ(tables().adopt(empty, list)->blocks, 3);
  EXPECT_REFUSED(tables().adopt(empty, list), failed_precondition, sequence);
}

TEST_F(PrefixLifeTest, TheSameCallsGiveTheSameBlocksUnderAnyKey) {
  std::vector<Numbers> seen;
  for (const std::uint64_t key : {1U, 2U, 3U}) {
    create({.num_blocks = 8, .max_holders = 64},
           {.block_size_tokens = 4,
            .max_sequences = 8,
            .prefix_cache = {.is_on = true, .hash_key = {key, 0}}});
    Numbers all;
    for (std::int32_t i = 0; i < 40; ++i) {
      const SequenceId id = computed(tokens(5 + i * 7 % 20, i % 3));
      for (const std::int32_t block : blocks(id)) all.push_back(block);
      EXPECT_OK(tables().destroy(id));
    }
    seen.push_back(all);
  }
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
}

}  // namespace
}  // namespace kvarena::test
