// The prefix cache of tables with groups: where a sequence can begin when a window or a state is
// missing, what an eviction takes away, and what is refused.

#include "kvarena/blocktable/block_tables.hpp"

#include "support/status_matchers.hpp"
#include "unit/blocktable/group_prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

namespace kvarena {
namespace {

using test::GroupPrefixTest;

TEST_F(GroupPrefixTest, ASequenceBeginsWithItsWindow) {
  ASSERT_OK(make({kWindow, kFull}));
  compute(counted(40), 40);
  const Tokens prompt = counted(50);
  const PrefixMatch found = match(prompt);
  EXPECT_EQ(found.tokens, 40);
  EXPECT_EQ(found.registered_tokens, 40);
  EXPECT_EQ(found.stop, PrefixStop::never_seen);
  const SequenceId id = tables_->create_sequence({.tokens = prompt}).value();
  EXPECT_EQ(tables_->info(id)->length_tokens, 40);
  EXPECT_EQ(tables_->info(id)->num_blocks, 10 + 2) << "all blocks, and those of the last 8 tokens";
  EXPECT_EQ(tables_->lookup(id, 7, 0).value(), kNoBlock);
  EXPECT_NE(tables_->lookup(id, 8, 0).value(), kNoBlock);
  EXPECT_EQ(tables_->info(id)->published_blocks, 10);
  grow(id, counted(10, 40));
  EXPECT_EQ(match(counted(60)).tokens, 48);
}

TEST_F(GroupPrefixTest, AnyLengthOfAPromptThatRanInOneStepCanBeHad) {
  ASSERT_OK(make({kFull, kWindow}));
  compute(counted(40), 40);
  for (std::int32_t blocks = 1; blocks <= 10; ++blocks) {
    Tokens prompt = counted(4 * blocks);
    prompt.push_back(-1);
    EXPECT_EQ(match(prompt).tokens, 4 * blocks);
  }
}

TEST_F(GroupPrefixTest, WithoutItsWindowABlockIsNoEnd) {
  ASSERT_OK(make({kFull, kWindow}));
  const SequenceId id = tables_->create_sequence().value();
  grow(id, counted(40));
  const BlockId lost = tables_->lookup(id, 9, 1).value();
  const Tokens prompt = counted(50);
  EXPECT_OK(tables_->destroy(id));
  lose(lost);
  const PrefixMatch found = match(prompt);
  EXPECT_EQ(found.tokens, 36) << "the window of token 36 ends with block 8";
  EXPECT_EQ(found.registered_tokens, 40);
  EXPECT_EQ(found.stop, PrefixStop::other_group);
  EXPECT_STREQ(std::string(name_of(found.stop)).c_str(), "other_group");

  // Who computes it again gives it back.
  const SequenceId again = tables_->create_sequence({.tokens = prompt}).value();
  EXPECT_EQ(tables_->info(again)->length_tokens, 36);
  EXPECT_EQ(tables_->prefix_stats().stops[static_cast<std::size_t>(PrefixStop::other_group)], 1u);
  grow(again, counted(14, 36));
  EXPECT_EQ(match(counted(41)).tokens, 40);
  EXPECT_EQ(match(counted(60)).tokens, 48);
}

TEST_F(GroupPrefixTest, WindowsThatAreEvictedFirstShortenHitsAndNothingElse) {
  ASSERT_OK(make({kFull, kWindow}, {.is_on = true}, 24));
  compute(counted(40), 40);  // 10 pages and 10
  EXPECT_EQ(manager_->page_stats().evictable, 20);
  const SequenceId id = tables_->create_sequence().value();
  grow(id, counted(12, 1000));  // 3 and 3: two pages are evicted, the oldest first
  const PrefixMatch found = match(counted(50));
  EXPECT_EQ(found.registered_tokens, 40) << "the blocks at the front of a window go first";
  EXPECT_EQ(found.tokens, 40);
  grow(id, counted(28, 2000));
  EXPECT_LT(match(counted(50)).tokens, 40);
}

TEST_F(GroupPrefixTest, AnEvictionIsToldOnlyWhereItStoppedTheHit) {
  ASSERT_OK(make({kFull, kWindow}, {.is_on = true}, 12));
  const Tokens prompt = counted(25);
  compute(counted(24), 24);  // 6 pages and 2 or more
  const SequenceId id = tables_->create_sequence().value();
  int by_group = 0;
  for (int block = 0; block < 5; ++block) {
    grow(id, counted(4, 1000 + 4 * block));
    const PrefixMatch found = match(prompt);
    if (found.stop != PrefixStop::other_group || found.registered_tokens == 24) continue;
    ++by_group;
    EXPECT_EQ(found.removal_by, kNoSequence);
    EXPECT_EQ(found.removal_serial, 0u);
  }
  EXPECT_GT(by_group, 0);
}

TEST_F(GroupPrefixTest, AStateIsFoundAtItsLengthAlone) {
  ASSERT_OK(make({kFull, kState}));
  compute(counted(30), 30);  // states at 8, 16 and 24
  const PrefixMatch found = match(counted(40));
  EXPECT_EQ(found.tokens, 24);
  EXPECT_EQ(found.registered_tokens, 28);
  EXPECT_EQ(found.stop, PrefixStop::other_group);
  EXPECT_EQ(match(counted(16)).tokens, 8) << "one token is left to compute";
  EXPECT_EQ(match(counted(17)).tokens, 16);
  const SequenceId id = tables_->create_sequence({.tokens = counted(40)}).value();
  std::vector<BlockId> ids(2);
  std::vector<Generation> generations(2);
  EXPECT_EQ(tables_->state_blocks(id, 24, 1, ids, generations).value(), 2);
  const AppendDemand demand{.sequence = id, .num_tokens = 1};
  const AppendResult step = tables_->append(std::span(&demand, 1)).value();
  EXPECT_EQ(step.states[0].read[0], ids[0].value) << "the step reads the state that was found";
  EXPECT_NE(step.states[0].write[0], ids[0].value) << "and writes to another";
}

// Blocks that others have published say nothing about a state that a lost step was to write.
TEST_F(GroupPrefixTest, AStateThatNobodyWroteIsNotFound) {
  for (const bool is_settled : {false, true}) {
    ASSERT_OK(make({kFull, kState}));
    const SequenceId first = tables_->create_sequence().value();
    const Tokens tokens = counted(9);
    const AppendDemand all{.sequence = first, .num_tokens = 9, .tokens = tokens};
    ASSERT_OK(tables_->append(std::span(&all, 1)));
    ASSERT_OK(tables_->publish(first));
    ASSERT_OK(tables_->destroy(first));  // before the append is settled: no state at 8 is kept
    ASSERT_EQ(match(counted(12)).tokens, 0);
    const SequenceId second = tables_->create_sequence().value();
    grow(second, counted(7));
    const Tokens next = counted(1, 7);
    const AppendDemand one{.sequence = second, .num_tokens = 1, .tokens = next};
    ASSERT_OK(tables_->append(std::span(&one, 1)));
    if (is_settled) tables_->settle_append();
    ASSERT_OK(tables_->lose_states(second, 7));
    EXPECT_EQ(match(counted(12)).tokens, 0) << "settled: " << is_settled;
    ASSERT_OK(tables_->distrust_tokens(second, 7));
    EXPECT_EQ(match(counted(12)).tokens, 0);
    ASSERT_OK(tables_->truncate(second, 0));
    grow(second, counted(8));
    EXPECT_EQ(match(counted(12)).tokens, 8) << "now it was written";
    ASSERT_OK(tables_->check_invariants());
  }
}

/// There is room for 16 checkpoints. Another sequence makes 20.
TEST_F(GroupPrefixTest, AStateWhoseCheckpointIsForgottenCanBeLostToo) {
  ASSERT_OK(make({kFull, kState}, {.is_on = true}, 16));
  const SequenceId id = tables_->create_sequence().value();
  grow(id, counted(8));
  const SequenceId other = tables_->create_sequence().value();
  for (std::int32_t i = 0; i < 20; ++i) {
    grow(other, counted(1, 1000 + i));
    ASSERT_OK(tables_->checkpoint(other));
  }
  std::int64_t lengths[2] = {};
  ASSERT_EQ(tables_->checkpoints_of(id, lengths).value(), 0);
  ASSERT_EQ(match(counted(12)).tokens, 8) << "others find the state that is held";
  ASSERT_OK(tables_->lose_states(id, 7));
  EXPECT_EQ(match(counted(12)).tokens, 0);
}

TEST_F(GroupPrefixTest, AStateThatIsKeptAtAPromptsEndIsFound) {
  ASSERT_OK(make({kFull, kState}));
  const SequenceId id = tables_->create_sequence().value();
  grow(id, counted(20));
  EXPECT_EQ(match(counted(40)).tokens, 16);
  EXPECT_OK(tables_->checkpoint(id));
  EXPECT_EQ(match(counted(40)).tokens, 20);
  grow(id, counted(1, 20));
  EXPECT_OK(tables_->checkpoint(id));
  EXPECT_EQ(match(counted(40)).tokens, 20) << "21 tokens end inside a block";
}

TEST_F(GroupPrefixTest, APromptKeepsAStateAtItsEndAndWhereAnotherOneEnded) {
  ASSERT_OK(make({kFull, kState}));
  const auto run = [this](const Tokens& prompt) {
    const SequenceId id = tables_->create_sequence({.tokens = prompt}).value();
    const std::int64_t found = tables_->info(id)->length_tokens;
    grow(id, Tokens(prompt.begin() + found, prompt.end()));
    grow(id, counted(1, 5000));
    EXPECT_OK(tables_->destroy(id));
    return found;
  };
  EXPECT_EQ(run(counted(30)), 0);
  EXPECT_EQ(match(counted(40)).tokens, 28) << "the last full block of the prompt";
  const auto branch = [](std::int32_t other) {
    Tokens prompt = counted(22);
    for (std::int32_t i = 0; i < 9; ++i) prompt.push_back(other + i);
    return prompt;
  };
  EXPECT_EQ(run(branch(1000)), 16) << "24 and 28 are behind the branch";
  EXPECT_EQ(run(branch(2000)), 20) << "the one before has kept the state at the branch";
  EXPECT_EQ(run(counted(40)), 28);
}

TEST_F(GroupPrefixTest, AStateThatLacksAPartIsNone) {
  ASSERT_OK(make({kFull, kState}));
  const SequenceId id = tables_->create_sequence().value();
  grow(id, counted(16));
  EXPECT_OK(tables_->checkpoint(id));
  std::vector<BlockId> ids(2);
  std::vector<Generation> generations(2);
  ASSERT_OK(tables_->state_blocks(id, 16, 1, ids, generations));
  EXPECT_OK(tables_->destroy(id));
  EXPECT_EQ(match(counted(40)).tokens, 16);
  lose(ids[1]);
  EXPECT_EQ(match(counted(40)).tokens, 8);
}

TEST_F(GroupPrefixTest, WhatIsForgottenLeavesNoGroup) {
  ASSERT_OK(make({kFull, kWindow}));
  compute(counted(40), 8);
  EXPECT_GT(manager_->page_stats().evictable, 10);
  EXPECT_OK(tables_->forget_all());
  EXPECT_EQ(manager_->page_stats().evictable, 0);
  EXPECT_EQ(match(counted(50)).tokens, 0);
}

TEST_F(GroupPrefixTest, AnUndoneStepLeavesNothing) {
  ASSERT_OK(make({kFull, kWindow}));
  const SequenceId id = tables_->create_sequence().value();
  const Tokens tokens = counted(20);
  const AppendDemand demand{.sequence = id, .num_tokens = 20, .tokens = tokens};
  ASSERT_OK(tables_->append(std::span(&demand, 1)));
  ASSERT_OK(tables_->publish(id));
  EXPECT_EQ(match(counted(30)).tokens, 20);
  ASSERT_OK(tables_->undo_append(true));
  EXPECT_EQ(match(counted(30)).tokens, 0);
  EXPECT_EQ(tables_->info(id)->known_tokens, 0);
}

TEST_F(GroupPrefixTest, OthersBlocksAreNeverWritten) {
  ASSERT_OK(make({kFull, kWindow}));
  compute(counted(24), 24);
  const SequenceId id = tables_->create_sequence({.tokens = counted(30)}).value();
  const BlockId of_all = tables_->lookup(id, 5, 0).value();
  const BlockId in_window = tables_->lookup(id, 5, 1).value();
  ASSERT_OK(tables_->truncate(id, 23));
  const Tokens other{-1};
  const AppendDemand demand{.sequence = id, .num_tokens = 1, .tokens = other};
  EXPECT_EQ(tables_->append(std::span(&demand, 1))->copies.size(), 2u);
  EXPECT_NE(tables_->lookup(id, 5, 0).value(), of_all);
  EXPECT_NE(tables_->lookup(id, 5, 1).value(), in_window);
  EXPECT_EQ(match(counted(30)).tokens, 24);
}

/// The blocks of a sequence's first tokens, as create_sequence_from takes them.
struct Given {
  Given(const BlockManager& manager, const BlockTables& tables, SequenceId id, std::int64_t count,
        std::size_t num_groups)
      : ids(num_groups), generations(num_groups) {
    for (std::size_t g = 0; g < num_groups; ++g) {
      std::int64_t first = 0;
      const auto group = static_cast<std::int32_t>(g);
      while (tables.lookup(id, first, group).value() == kNoBlock) ++first;
      for (std::int64_t i = first; i < count; ++i) {
        ids[g].push_back(tables.lookup(id, i, group).value());
        generations[g].push_back(manager.generation(ids[g].back()));
      }
      blocks.push_back({first, ids[g], generations[g]});
    }
  }
  std::vector<std::vector<BlockId>> ids;
  std::vector<std::vector<Generation>> generations;
  std::vector<GroupBlocks> blocks;
};

constexpr std::uint64_t kTenantA = 7;
constexpr std::uint64_t kTenantB = 8;

TEST_F(GroupPrefixTest, ATenantCannotBeginWithBlocksOfAnother) {
  ASSERT_OK(make({kFull, kWindow}));
  const SequenceId a = tables_->create_sequence({.salt = kTenantA}).value();
  grow(a, counted(20));
  const Given its(*manager_, *tables_, a, 5, 2);
  const std::int64_t held = manager_->stats().referenced;
  const PrefixStats before = tables_->prefix_stats();
  const auto refused = tables_->create_sequence_from(20, its.blocks, {.salt = kTenantB});
  EXPECT_FAILS(refused, invalid_argument, none);
  EXPECT_EQ(refused.status().option, Option::salt);
  EXPECT_EQ(refused.status().subject, kTenantB);
  EXPECT_EQ(refused.status().required, kTenantA);
  EXPECT_EQ(tables_->stats().sequences, 1);
  EXPECT_EQ(manager_->stats().referenced, held);
  EXPECT_EQ(tables_->prefix_stats().registered, before.registered);
  EXPECT_EQ(tables_->match({.tokens = counted(30), .salt = kTenantA})->tokens, 20);
  EXPECT_EQ(tables_->match({.tokens = counted(30), .salt = kTenantB})->tokens, 0);
  EXPECT_OK(tables_->create_sequence_from(20, its.blocks, {.salt = kTenantA}));
}

TEST_F(GroupPrefixTest, BlocksOfAnImportThatNobodyMayReadAreRefused) {
  for (const bool fails : {false, true}) {
    ASSERT_OK(make({kFull, kWindow}));
    const SequenceId import = tables_->import_sequence(20).value();
    const Given its(*manager_, *tables_, import, 5, 2);
    EXPECT_OK(fails ? tables_->fail_import(import) : Status{});
    const std::int64_t held = manager_->stats().referenced;
    EXPECT_FAILS(tables_->create_sequence_from(20, its.blocks), failed_precondition, block);
    EXPECT_EQ(manager_->stats().referenced, held);
    EXPECT_OK(fails ? Status{} : tables_->publish_import(import));
    EXPECT_EQ(tables_->create_sequence_from(20, its.blocks).is_ok(), !fails);
  }
}

TEST_F(GroupPrefixTest, AWindowOfAnotherTenantIsRefusedToo) {
  ASSERT_OK(make({kFull, kWindow}));
  const SequenceId a = tables_->create_sequence({.salt = kTenantA}).value();
  grow(a, counted(20));
  const SequenceId b = tables_->create_sequence({.salt = kTenantB}).value();
  grow(b, counted(20));
  const Given of_a(*manager_, *tables_, a, 5, 2);
  const Given of_b(*manager_, *tables_, b, 5, 2);
  const std::vector<GroupBlocks> mixed{of_b.blocks[0], of_a.blocks[1]};
  const auto refused = tables_->create_sequence_from(20, mixed, {.salt = kTenantB});
  EXPECT_FAILS(refused, invalid_argument, none);
  EXPECT_EQ(refused.status().option, Option::salt);
  EXPECT_OK(tables_->create_sequence_from(20, of_b.blocks, {.salt = kTenantB}));
}

TEST_F(GroupPrefixTest, BlocksOfOtherExtraKeysAreRefused) {
  ASSERT_OK(make({kFull, kWindow}, {.is_on = true, .max_extra_keys = 3}));
  const std::vector<ExtraKey> keys{{1, 0}, {2, 9}, {3, 19}};
  const SequenceId a = tables_->create_sequence({.extra_keys = keys}).value();
  grow(a, counted(20));
  const Given its(*manager_, *tables_, a, 5, 2);
  const auto option_of = [&](const std::vector<ExtraKey>& given) {
    return tables_->create_sequence_from(20, its.blocks, {.extra_keys = given}).status().option;
  };
  EXPECT_EQ(option_of({}), Option::extra_keys);
  EXPECT_EQ(option_of({{1, 0}, {2, 9}}), Option::extra_keys);
  EXPECT_EQ(option_of({{1, 0}, {4, 9}, {3, 19}}), Option::extra_keys);
  EXPECT_EQ(option_of({{1, 0}, {2, 10}, {3, 19}}), Option::first_token);
  EXPECT_OK(tables_->create_sequence_from(20, its.blocks, {.extra_keys = keys}));
  // A key behind the end says nothing of these tokens.
  const std::span<const ExtraKey> two = std::span(keys).first(2);
  EXPECT_OK(tables_->create_sequence_from(19, its.blocks, {.extra_keys = two}));
}

TEST_F(GroupPrefixTest, ABlockThatGotASaltMeanwhileIsNotRegisteredUnderAnother) {
  ASSERT_OK(make({kFull, kWindow}));
  const SequenceId a = tables_->create_sequence({.salt = kTenantA}).value();
  const AppendDemand demand{.sequence = a, .num_tokens = 20};
  ASSERT_OK(tables_->append(std::span(&demand, 1)));
  tables_->settle_append();
  const Given its(*manager_, *tables_, a, 5, 2);
  const SequenceId b = tables_->create_sequence_from(20, its.blocks, {.salt = kTenantB}).value();
  ASSERT_OK(tables_->register_tokens(a, counted(20)));
  ASSERT_OK(tables_->publish(a));
  ASSERT_OK(tables_->register_tokens(b, counted(20)));
  ASSERT_OK(tables_->publish(b));
  EXPECT_EQ(tables_->info(b)->registered_blocks, 0);
  EXPECT_EQ(tables_->prefix_stats().broken_chains, 1u);
  EXPECT_EQ(tables_->match({.tokens = counted(30), .salt = kTenantA})->tokens, 20);
  EXPECT_EQ(tables_->match({.tokens = counted(30), .salt = kTenantB})->tokens, 0);
}

/// 40 pages hold prefixes of 20 blocks: each takes a block of either group. The ghost that is as
/// large as the pool finds what 16 blocks leave of four prompts, not what 24 do.
TEST_F(GroupPrefixTest, GhostsHaveTheBlocksThatThePagesHaveRoomFor) {
  ASSERT_OK(make({kFull, kWindow}, {.is_on = true, .ghost_blocks = 4096}, 40));
  const auto ask = [this](std::int32_t blocks) {
    for (std::int32_t round = 0; round < 2; ++round) {
      for (std::int32_t first : {0, 1000, 2000, 3000}) {
        const SequenceId id =
            tables_->create_sequence({.tokens = counted(4 * blocks, first)}).value();
        EXPECT_OK(tables_->destroy(id));
      }
    }
    return tables_->prefix_use();
  };
  const PrefixUse small = ask(4);
  EXPECT_EQ(small.ghost_references, 32U);
  EXPECT_EQ(small.ghost_sampled_ppm, 1'000'000);
  EXPECT_EQ(small.ghost_hits_ppm[0][1], 500'000) << "the second round, from 20 blocks";
  EXPECT_EQ(small.ghost_hits_ppm[0][0], 0) << "not from 10";
  ASSERT_OK(make({kFull, kWindow}, {.is_on = true, .ghost_blocks = 4096}, 40));
  const PrefixUse large = ask(6);
  EXPECT_LT(large.ghost_hits_ppm[0][1], 300'000);
  EXPECT_EQ(large.ghost_hits_ppm[0][2], 500'000) << "twice the pool";
}

/// A state of two blocks each 8 tokens costs as much as the two blocks between.
TEST_F(GroupPrefixTest, GhostsCountStates) {
  ASSERT_OK(make({kFull, kState}, {.is_on = true, .ghost_blocks = 4096}, 40));
  for (std::int32_t round = 0; round < 2; ++round) {
    for (std::int32_t first : {0, 1000, 2000, 3000, 4000}) {
      const SequenceId id = tables_->create_sequence({.tokens = counted(16, first)}).value();
      EXPECT_OK(tables_->destroy(id));
    }
  }
  EXPECT_EQ(tables_->prefix_use().ghost_hits_ppm[0][1], 500'000) << "20 blocks in 40 pages";
  EXPECT_EQ(tables_->prefix_use().ghost_hits_ppm[0][0], 0);
}

/// The order is one of pages: with a policy that keeps what is used often, what others compute
/// once goes first, whatever its age.
TEST_F(GroupPrefixTest, APolicyKeepsAPromptThatIsUsedOften) {
  for (const EvictionPolicy policy : {EvictionPolicy::tail_first, EvictionPolicy::lfu}) {
    ASSERT_OK(make({kFull, kWindow}, {.is_on = true}, 24, policy));
    compute(counted(16), 16);
    for (int use = 0; use < 3; ++use) {
      EXPECT_OK(tables_->destroy(tables_->create_sequence({.tokens = counted(17)}).value()));
    }
    for (std::int32_t other = 1; other < 6; ++other) compute(counted(16, 1000 * other), 16);
    EXPECT_EQ(match(counted(17)).tokens, policy == EvictionPolicy::lfu ? 16 : 0) << name_of(policy);
  }
}

/// A tenant past its cap gives up its own oldest blocks, with their windows, while pages are free.
TEST_F(GroupPrefixTest, ACapHoldsForATenantWithGroups) {
  ASSERT_OK(make({kFull, kWindow}, {.is_on = true, .max_accounts = 2}));
  const Status floor = tables_->set_salt_limits(0, {.floor_blocks = 1});
  EXPECT_EQ(floor.code, StatusCode::unsupported);
  EXPECT_EQ(floor.option, Option::floor_blocks);
  ASSERT_OK(tables_->set_salt_limits(0, {.cap_blocks = 4}));
  compute(counted(16), 16);
  EXPECT_EQ(match(counted(17)).tokens, 16);
  EXPECT_EQ(manager_->page_stats().evictable, 8);
  compute(counted(12, 1000), 12);
  EXPECT_EQ(tables_->salt_figures(0)->registered, 4);
  EXPECT_EQ(match(counted(13, 1000)).tokens, 12);
  const PrefixMatch found = match(counted(17));
  EXPECT_EQ(found.tokens, 4) << "the head is its newest";
  EXPECT_EQ(found.removal, PrefixRemoval::over_cap);
  EXPECT_EQ(manager_->page_stats().evictable, 8) << "windows go with their blocks";
  EXPECT_GT(manager_->page_stats().free, 100);
}

/// There is no room for the hit: its pages can be had by nobody else.
TEST_F(GroupPrefixTest, ASequenceThatIsRefusedIsNotCounted) {
  ASSERT_OK(make({kFull, kWindow}, {.is_on = true, .max_accounts = 2}, 8));
  ASSERT_OK(tables_->set_salt_limits(7, {.cap_blocks = 8}));
  const Tokens tokens = counted(9);
  const SequenceId id = tables_->create_sequence({.salt = 7}).value();
  grow(id, tokens);
  ASSERT_OK(tables_->destroy(id));
  const HolderId other = manager_->register_holder({}).value();
  ASSERT_OK(manager_->reserve(other, manager_->page_stats().available(), Urgency::growth));
  const Result<SequenceId> refused = tables_->create_sequence({.tokens = tokens, .salt = 7});
  EXPECT_FAILS(refused, exhausted, page);
  EXPECT_EQ(tables_->salt_figures(7)->sequences, 0);
  EXPECT_EQ(tables_->stats().sequences, 0);
  ASSERT_OK(manager_->unregister_holder(other));
  const SequenceId begun = tables_->create_sequence({.tokens = tokens, .salt = 7}).value();
  EXPECT_EQ(tables_->prefix_of(begun)->tokens, 8);
  EXPECT_EQ(tables_->salt_figures(7)->sequences, 1);
  ASSERT_OK(tables_->destroy(begun));
  EXPECT_EQ(tables_->salt_figures(7)->sequences, 0);
}

/// Without accounts an explanation counts what every group would give.
TEST_F(GroupPrefixTest, AnExplanationCountsTheBlocksOfAllGroupsBySalt) {
  ASSERT_OK(make({kFull, kWindow}));
  compute(counted(16), 16);
  const SequenceId id = tables_->create_sequence({.salt = kTenantB}).value();
  grow(id, counted(8));
  EXPECT_OK(tables_->destroy(id));
  const Explanation e = tables_->explain(1);
  ASSERT_EQ(e.num_salts, 2U);
  EXPECT_EQ(e.evictable_salts[0].salt, 0U);
  EXPECT_EQ(e.evictable_salts[0].blocks, 8);
  EXPECT_EQ(e.evictable_salts[1].salt, kTenantB);
  EXPECT_EQ(e.evictable_salts[1].blocks, 4);
  EXPECT_EQ(e.evictable_of_others, 0);
}

TEST_F(GroupPrefixTest, WhoTookTheBlockOfAGroupIsSaid) {
  ASSERT_OK(make({kFull, kWindow}, {.is_on = true}, 12));
  compute(counted(20), 20);  // 10 pages
  const SequenceId id = tables_->create_sequence().value();
  grow(id, counted(24, 1000));  // 12 pages: all others are evicted
  const PrefixMatch found = match(counted(21));
  EXPECT_EQ(found.registered_tokens, 0);
  EXPECT_EQ(found.stop, PrefixStop::evicted);
  EXPECT_EQ(found.removal_by, id);
}

TEST_F(GroupPrefixTest, WhatItCannotHaveIsRefusedByName) {
  const auto refused = [this](const std::vector<TableGroup>& groups, PrefixOptions prefix) {
    prefix.is_on = true;
    const Status status = make(groups, prefix);
    EXPECT_EQ(status.code, StatusCode::unsupported);
    return status.option;
  };
  const TableGroup encoder{PagedKind::cross, 4, 8};
  TableGroup wide = kWindow;
  wide.block_size_tokens = 8;
  EXPECT_EQ(refused({kWindow, kState}, {}), Option::kind) << "no group keeps all tokens";
  EXPECT_EQ(refused({kFull, encoder}, {}), Option::kind);
  EXPECT_EQ(refused({kFull, wide}, {}), Option::block_size_tokens);
  EXPECT_EQ(refused({kFull, kWindow}, {.duplicates = DuplicateRule::share}), Option::duplicates);
  EXPECT_EQ(refused({kFull, kWindow}, {.share_parts = true}), Option::share_parts);
  EXPECT_OK(make({kFull, kWindow, kState}, {.is_on = true, .duplicates = DuplicateRule::wait}));
}

}  // namespace
}  // namespace kvarena
