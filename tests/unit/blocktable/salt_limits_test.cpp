// Floors and caps of the blocks of a salt, and what an explanation says about them.

#include "unit/blocktable/prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvarena::test {
namespace {

class SaltLimitsTest : public PrefixTest {
 protected:
  /// Tables of 8 blocks of 4 tokens with room for two accounts.
  void SetUp() override {
    create({.num_blocks = 8, .max_holders = 32},
           {.block_size_tokens = 4,
            .max_sequences = 8,
            .prefix_cache = {.is_on = true, .hash_key = {7, 11}, .max_accounts = 2}});
  }
  /// Computes these tokens under a salt, and ends.
  void cache(const Tokens& list, std::uint64_t salt) {
    EXPECT_OK(tables().destroy(computed(list, salt)));
    expect_whole();
  }
  std::int64_t cached(const Tokens& list, std::uint64_t salt) { return match(list, salt).blocks; }
  SaltFigures figures(std::uint64_t salt) { return tables().salt_figures(salt).value(); }
};

TEST_F(SaltLimitsTest, AFloorKeepsTheFirstBlocksFromOthers) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 2}));
  cache(tokens(13), 1);  // three full blocks
  EXPECT_EQ(figures(1).kept, 2);
  EXPECT_EQ(manager().stats().evictable, 1) << "the third block";
  cache(tokens(21, 100), 2);  // six blocks: five are free
  cache(tokens(21, 200), 3);
  EXPECT_EQ(cached(tokens(13), 1), 2) << "others took the third block, and no more";
  EXPECT_EQ(figures(1).kept, 2);
  const SequenceId large = begin(tokens(28, 300), 2);
  const Tokens all = tokens(28, 300);
  const AppendDemand demand{large, 28, {}, all};
  EXPECT_REFUSED(tables().append(std::span(&demand, 1)), exhausted, block);
  EXPECT_EQ(figures(1).kept, 2) << "not for another";
  EXPECT_OK(tables().destroy(large));
}

TEST_F(SaltLimitsTest, TheNewestPrefixesAreKept) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 2}));
  cache(tokens(5), 1);
  cache(tokens(5, 100), 1);
  cache(tokens(5, 200), 1);
  EXPECT_EQ(manager().stats().evictable, 1);
  cache(tokens(24, 300), 2);  // six blocks: five are free
  EXPECT_EQ(cached(tokens(5), 1), 0);
  EXPECT_EQ(cached(tokens(5, 100), 1), 1);
  EXPECT_EQ(cached(tokens(5, 200), 1), 1);
}

TEST_F(SaltLimitsTest, ASaltUsesItsOwnFloorWhenBlocksRunOut) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 3}));
  cache(tokens(13), 1);
  const std::uint64_t refused = manager().stats().exhaustions;
  const SequenceId large = begin(tokens(28, 100), 1);
  append_rest(large, tokens(28, 100));  // seven of eight blocks
  EXPECT_EQ(figures(1).kept, 1) << "two went, which is what was missing";
  EXPECT_EQ(cached(tokens(13), 1), 1) << "the last blocks went first";
  EXPECT_EQ(manager().stats().exhaustions, refused);
  const Tokens more = tokens(33, 100);
  const AppendDemand too_many{large, 5, {}, std::span(more).last(5)};
  EXPECT_REFUSED(tables().append(std::span(&too_many, 1)), exhausted, block);
  EXPECT_EQ(figures(1).kept, 1) << "a call that is refused anyway takes nothing";
  expect_whole();
  EXPECT_OK(tables().destroy(large));
}

TEST_F(SaltLimitsTest, ABlockThatLeavesServiceIsNotGivenUpInVain) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 2}));
  const SequenceId first = computed(tokens(9), 1);
  const BlockId kept = tables().lookup(first, 0).value();
  EXPECT_OK(tables().destroy(first));
  EXPECT_EQ(manager().quarantine(kept).value(), false) << "it waits for the floor";
  const SequenceId large = begin(tokens(32, 100), 1);
  const Tokens all = tokens(32, 100);
  const AppendDemand eight{large, 32, {}, all};
  EXPECT_REFUSED(tables().append(std::span(&eight, 1)), exhausted, block);
  EXPECT_EQ(figures(1).kept, 2) << "seven can be had";
  const AppendDemand seven{large, 28, {}, std::span(all).first(28)};
  EXPECT_OK(tables().append(std::span(&seven, 1)));
  EXPECT_EQ(figures(1).kept, 1);
  expect_whole();
  EXPECT_OK(tables().destroy(large));
}

// It would go with the block in front of it, which no floor keeps.
TEST_F(SaltLimitsTest, WhatLiesBehindABlockThatWaitsToLeaveServiceIsNotKept) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 2}));
  const SequenceId first = computed(tokens(9), 1);
  const HolderId pin = tables().pin(first, {.num_blocks = 1}).value();
  const BlockId waits = tables().lookup(first, 0).value();
  EXPECT_EQ(manager().quarantine(waits).value(), false);
  EXPECT_OK(tables().destroy(first));
  EXPECT_EQ(figures(1).kept, 0);
  EXPECT_OK(manager().restore(waits));
  EXPECT_OK(tables().unpin(pin));
  EXPECT_EQ(cached(tokens(9), 1), 2);
  cache(tokens(32, 100), 2);
  EXPECT_EQ(cached(tokens(9), 1), 0);
  EXPECT_EQ(figures(1).kept, 0);
}

TEST_F(SaltLimitsTest, WhatLiesBehindABlockWithoutAnAccountIsNotKept) {
  cache(tokens(5), 1);
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 2}));
  cache(tokens(9), 1);
  EXPECT_EQ(figures(1).registered, 1);
  EXPECT_EQ(figures(1).kept, 0);
  cache(tokens(32, 100), 2);
  EXPECT_EQ(cached(tokens(9), 1), 0);
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 2}));
  cache(tokens(9), 1);
  EXPECT_EQ(figures(1).kept, 2) << "the first block is registered anew, under the account";
}

// The first sequence has ended: the blocks that the second one stands behind are cached.
TEST_F(SaltLimitsTest, WhatLiesBehindABlockThatCannotBeHadIsNotKept) {
  EXPECT_OK(tables().set_salt_limits(1, {}));
  const SequenceId first = begin(tokens(8), 1);
  const SequenceId second = begin(tokens(12), 1);
  append_rest(first, tokens(8));
  append_rest(second, tokens(12));
  EXPECT_OK(tables().publish(first));
  EXPECT_OK(tables().publish(second));
  EXPECT_OK(tables().destroy(first));
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 3}));
  const SequenceId other = begin({}, 2);
  EXPECT_OK(tables().promise_capacity(other, 20));
  EXPECT_OK(tables().destroy(second));
  EXPECT_EQ(figures(1).kept, 0) << "all blocks but the second sequence's own are promised";
  EXPECT_OK(tables().promise_capacity(other, 0));
  EXPECT_EQ(cached(tokens(13), 1), 3);
  cache(tokens(32, 100), 2);
  EXPECT_EQ(cached(tokens(13), 1), 0);
  EXPECT_EQ(figures(1).kept, 0);
  EXPECT_OK(tables().destroy(other));
}

// The append lacks a block because of the watermark alone: others have one that could be evicted.
TEST_F(SaltLimitsTest, WhatAFloorLetsGoIsUsed) {
  create({.num_blocks = 4, .watermark_blocks = 1},
         {.block_size_tokens = 4,
          .max_sequences = 8,
          .prefix_cache = {.is_on = true, .hash_key = {7, 11}, .max_accounts = 2}});
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 1}));
  cache(tokens(4), 1);
  cache(tokens(4), 2);
  const SequenceId busy = tables().create_sequence({.salt = 2}).value();
  const AppendDemand two{busy, 8, {}, {}};
  EXPECT_OK(tables().append(std::span(&two, 1)));
  const SequenceId own = tables().create_sequence({.salt = 1}).value();
  const AppendDemand one{own, 4, Urgency::admission, {}};
  EXPECT_OK(tables().append(std::span(&one, 1)));
  EXPECT_EQ(figures(1).registered, 0) << "its own block has gone";
  EXPECT_EQ(match(tokens(5), 1).removal, PrefixRemoval::evicted);
  EXPECT_EQ(cached(tokens(5), 2), 1) << "others lose nothing";
  expect_whole();
  EXPECT_OK(tables().destroy(own));
  EXPECT_OK(tables().destroy(busy));
}

TEST_F(SaltLimitsTest, ACapTakesTheSaltsOwnOldest) {
  EXPECT_OK(tables().set_salt_limits(1, {.cap_blocks = 3}));
  cache(tokens(9), 1);       // two blocks
  cache(tokens(5, 100), 1);  // one
  cache(tokens(5, 50), 2);
  EXPECT_EQ(figures(1).registered, 3);
  cache(tokens(5, 200), 1);
  EXPECT_EQ(figures(1).registered, 3);
  EXPECT_EQ(cached(tokens(9), 1), 1) << "the last block of the oldest prefix went";
  EXPECT_EQ(match(tokens(9), 1).removal, PrefixRemoval::over_cap);
  EXPECT_EQ(cached(tokens(5, 100), 1), 1);
  EXPECT_EQ(cached(tokens(5, 50), 2), 1) << "others are not touched";
  EXPECT_EQ(manager().stats().free, 4) << "although blocks were free";
  const SequenceId running = computed(tokens(21, 300), 1);  // five blocks at once
  EXPECT_EQ(figures(1).registered, 5) << "blocks in use may exceed the cap";
  EXPECT_EQ(cached(tokens(5, 200), 1), 0);
  EXPECT_OK(tables().destroy(running));
  cache(tokens(5, 400), 1);
  EXPECT_EQ(figures(1).registered, 3);
}

TEST_F(SaltLimitsTest, ACapTakesWhatWasCachedBeforeIt) {
  EXPECT_OK(tables().set_salt_limits(1, {}));
  cache(tokens(9), 1);  // two blocks
  EXPECT_OK(tables().set_salt_limits(1, {.cap_blocks = 2}));
  cache(tokens(5, 100), 1);
  EXPECT_EQ(figures(1).registered, 2);
  EXPECT_EQ(cached(tokens(9), 1), 1);
}

TEST_F(SaltLimitsTest, ACapTakesABlockInUseWhenItsUseHasEnded) {
  EXPECT_OK(tables().set_salt_limits(1, {.cap_blocks = 2}));
  const Ticket ticket = manager().open_ticket().value();
  EXPECT_OK(tables().destroy(computed(tokens(5), 1), ticket));
  cache(tokens(5, 100), 1);
  cache(tokens(5, 200), 1);
  EXPECT_EQ(figures(1).registered, 2);
  EXPECT_EQ(cached(tokens(5), 1), 1) << "its turn had come, but work still read it";
  EXPECT_EQ(cached(tokens(5, 100), 1), 0);
  EXPECT_OK(manager().retire(ticket));
  for (std::int32_t first = 300; first < 600; first += 100) cache(tokens(5, first), 1);
  EXPECT_EQ(figures(1).registered, 2);
  EXPECT_EQ(cached(tokens(5), 1), 0);
  expect_whole();
}

// A new block of a salt at its cap takes none of what its floor keeps while work reads that.
TEST_F(SaltLimitsTest, ACapLeavesTheFloorWhatWorkStillReads) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 2, .cap_blocks = 2}));
  const Ticket ticket = manager().open_ticket().value();
  EXPECT_OK(tables().destroy(computed(tokens(9), 1), ticket));
  EXPECT_EQ(figures(1).kept, 2);
  const SequenceId running = computed(tokens(5, 100), 1);
  EXPECT_EQ(figures(1).kept, 2) << "nothing could be taken";
  EXPECT_OK(manager().retire(ticket));
  cache(tokens(16, 300), 2);  // four blocks are left
  cache(tokens(13, 400), 3);
  EXPECT_EQ(cached(tokens(9), 1), 2) << "still not for others";
  EXPECT_OK(tables().destroy(running));
  cache(tokens(5, 200), 1);
  EXPECT_EQ(figures(1).registered, 2);
  expect_whole();
}

TEST_F(SaltLimitsTest, AFloorDoesNotGoForWhatWorkStillReads) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 2}));
  const Ticket ticket = manager().open_ticket().value();
  EXPECT_OK(tables().destroy(computed(tokens(9), 1), ticket));
  const SequenceId large = begin(tokens(28, 100), 1);
  const Tokens all = tokens(28, 100);
  const AppendDemand demand{large, 28, {}, all};
  EXPECT_REFUSED(tables().append(std::span(&demand, 1)), exhausted, block);
  EXPECT_EQ(figures(1).kept, 2) << "the blocks would not have come back";
  EXPECT_OK(manager().retire(ticket));
  append_rest(large, all);
  EXPECT_EQ(figures(1).kept, 1);
  expect_whole();
  EXPECT_OK(tables().destroy(large));
}

TEST_F(SaltLimitsTest, AFloorKeepsASequenceThatEndsInAStep) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 2}));
  const SequenceId id = computed(tokens(9), 1);
  append_rest(id, tokens(13));  // the third block is registered, and not published
  EXPECT_OK(tables().destroy(id));
  EXPECT_EQ(figures(1).registered, 2);
  EXPECT_EQ(figures(1).kept, 2);
  expect_whole();
}

// Two sequences have computed the same last block. The registered one is the other's, and is taken.
TEST_F(SaltLimitsTest, AFloorKeepsWhatIsInFrontOfABlockThatHasGone) {
  for (const bool is_cut : {false, true}) {
    SetUp();
    EXPECT_OK(tables().set_salt_limits(1, {}));
    const SequenceId first = computed(tokens(20), 1);
    const SequenceId fork = tables().fork(first, 16).value();
    append_rest(fork, tokens(20));
    EXPECT_OK(tables().publish(fork));
    EXPECT_OK(tables().destroy(first));
    const SequenceId other = computed(tokens(12, 100), 2);  // two blocks are free
    EXPECT_EQ(figures(1).registered, 4);
    EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 3}));
    if (is_cut) {
      EXPECT_OK(tables().truncate(fork, 16));
      EXPECT_EQ(figures(1).kept, 0) << "it gives up nothing that is registered";
      EXPECT_OK(tables().truncate(fork, 10));
    } else {
      EXPECT_OK(tables().destroy(fork));
    }
    EXPECT_EQ(figures(1).kept, 3);
    expect_whole();
    if (is_cut) {
      EXPECT_OK(tables().destroy(fork));
    }
    EXPECT_EQ(figures(1).kept, 3);
    EXPECT_OK(tables().destroy(other));
    cache(tokens(20, 200), 2);
    EXPECT_EQ(cached(tokens(20), 1), 3) << "for others too";
  }
}

TEST_F(SaltLimitsTest, AFloorFollowsItsLimits) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 3}));
  cache(tokens(13), 1);
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 1}));
  EXPECT_EQ(figures(1).kept, 1);
  EXPECT_EQ(manager().stats().evictable, 2);
  EXPECT_OK(tables().set_salt_limits(1, {}));
  EXPECT_EQ(figures(1).kept, 0);
  cache(tokens(13), 1);
  EXPECT_EQ(figures(1).kept, 0);
  EXPECT_EQ(figures(1).registered, 3);
}

TEST_F(SaltLimitsTest, WhatIsForgottenIsNotKept) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 3}));
  cache(tokens(13), 1);
  EXPECT_OK(tables().forget_salt(1));
  EXPECT_EQ(figures(1).registered, 0);
  EXPECT_EQ(figures(1).kept, 0);
  EXPECT_EQ(manager().stats().free, 8);
  expect_whole();
}

TEST_F(SaltLimitsTest, BlocksOfAFloorNeedTablePagesToo) {
  create({.num_blocks = 8, .max_holders = 32},
         {.block_size_tokens = 4,
          .max_sequences = 8,
          .max_table_pages = 1,
          .prefix_cache = {.is_on = true, .hash_key = {7, 11}, .max_accounts = 2}});
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 8}));
  cache(tokens(32), 1);
  EXPECT_EQ(figures(1).kept, 8) << "the whole pool";
  const AppendDemand demands[] = {{begin({}, 1), 4}, {begin({}, 1), 4}};
  EXPECT_REFUSED(tables().append(demands), exhausted, table_page);
  EXPECT_EQ(figures(1).kept, 8);
  EXPECT_OK(tables().append(std::span(demands).first(1)));
  EXPECT_EQ(figures(1).kept, 7);
  expect_whole();
}

TEST_F(SaltLimitsTest, AnAccountEndsWithItsLastBlock) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 1}));
  const SequenceId id = begin(tokens(5), 1);
  EXPECT_EQ(figures(1).sequences, 1);
  EXPECT_REFUSED(tables().close_salt_account(1), failed_precondition, sequence);
  append_rest(id, tokens(5));
  const SequenceId child = tables().fork(id, 4).value();
  EXPECT_EQ(figures(1).sequences, 2) << "a fork has the salt of its parent";
  EXPECT_OK(tables().publish(id));
  EXPECT_OK(tables().destroy(child));
  EXPECT_OK(tables().destroy(id));
  EXPECT_REFUSED(tables().close_salt_account(1), failed_precondition, sequence);
  EXPECT_OK(tables().forget_salt(1));
  EXPECT_OK(tables().close_salt_account(1));
  EXPECT_REFUSED(tables().close_salt_account(1), not_found, holder);
  EXPECT_REFUSED(tables().salt_figures(1), not_found, holder);
  EXPECT_OK(tables().set_salt_limits(2, {}));
  EXPECT_OK(tables().set_salt_limits(3, {}));
  EXPECT_REFUSED(tables().set_salt_limits(4, {}), exhausted, capacity);
  EXPECT_OK(tables().set_salt_limits(3, {.floor_blocks = 2}));
}

TEST_F(SaltLimitsTest, WrongLimitsAreRefused) {
  const Status floor = tables().set_salt_limits(1, {.floor_blocks = 9});
  EXPECT_EQ(floor.code, StatusCode::invalid_argument);
  EXPECT_EQ(floor.option, Option::floor_blocks);
  EXPECT_EQ(tables().set_salt_limits(1, {.floor_blocks = -1}).option, Option::floor_blocks);
  EXPECT_EQ(tables().set_salt_limits(1, {.cap_blocks = 0}).option, Option::cap_blocks);
  EXPECT_EQ(tables().set_salt_limits(1, {.floor_blocks = 3, .cap_blocks = 2}).option,
            Option::cap_blocks);
  EXPECT_EQ(tables().salt_figures(1).status().code, StatusCode::not_found);
  create_cache({});
  EXPECT_EQ(tables().set_salt_limits(1, {}).option, Option::max_accounts);
  create(4, 4);
  EXPECT_EQ(tables().set_salt_limits(1, {}).option, Option::prefix_cache);
}

TEST_F(SaltLimitsTest, AnExplanationSaysFromWhomEvictionWouldTake) {
  EXPECT_OK(tables().set_salt_limits(1, {.floor_blocks = 1}));
  EXPECT_OK(tables().set_salt_limits(2, {}));
  cache(tokens(9), 1);
  cache(tokens(13, 100), 2);
  cache(tokens(5, 200), 3);
  const Explanation e = tables().explain(9);
  ASSERT_EQ(e.num_salts, 2U);
  EXPECT_EQ(e.evictable_salts[0].salt, 2U);
  EXPECT_EQ(e.evictable_salts[0].blocks, 3);
  EXPECT_EQ(e.evictable_salts[1].salt, 1U);
  EXPECT_EQ(e.evictable_salts[1].blocks, 1) << "the other one is kept";
  EXPECT_EQ(e.evictable_of_others, 1);
  const std::string text = to_string(e);
  EXPECT_NE(text.find("evictable: 3 of salt 2, 1 of salt 1, 1 of others\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find("salt floor 1: 1 references"), std::string::npos) << text;
}

}  // namespace
}  // namespace kvarena::test
