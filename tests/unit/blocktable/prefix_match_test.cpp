// What is matched, what is not, and the reasons.

#include "blocktable/prefix_evictions.hpp"
#include "blocktable/prefix_history.hpp"
#include "unit/blocktable/prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <array>

namespace kvarena::test {
namespace {

using PrefixMatchTest = PrefixTest;

TEST_F(PrefixMatchTest, BlocksOfAFinishedSequenceAreSharedByTheNext) {
  create_cache({});
  const SequenceId first = computed(tokens(10));
  const Numbers its = blocks(first);
  EXPECT_OK(tables().destroy(first));
  EXPECT_EQ(manager().stats().evictable, 2);
  EXPECT_EQ(manager().stats().free, 14);
  const SequenceId second = begin(tokens(11));
  EXPECT_EQ(length(second), 8);
  EXPECT_EQ(blocks(second), (Numbers{its[0], its[1]}));
  const PrefixMatch found = tables().prefix_of(second).value();
  EXPECT_EQ(found.tokens, 8);
  EXPECT_EQ(found.blocks, 2);
  EXPECT_EQ(found.stop, PrefixStop::less_than_a_block);
  EXPECT_EQ(manager().stats().evictable, 0);
  append_rest(second, tokens(11));
  EXPECT_EQ(tables().info(second)->known_tokens, 11);
  EXPECT_EQ(tables().info(second)->registered_blocks, 2);
}

TEST_F(PrefixMatchTest, OneTokenIsLeftToCompute) {
  create_cache({});
  const SequenceId first = computed(tokens(8));
  EXPECT_EQ(match(tokens(8)).tokens, 4);
  EXPECT_EQ(stop_of(tokens(8)), PrefixStop::capped);
  EXPECT_EQ(match(tokens(9)).tokens, 8);
  EXPECT_EQ(stop_of(tokens(9)), PrefixStop::less_than_a_block);
  EXPECT_EQ(match(tokens(4)).tokens, 0);
  EXPECT_EQ(stop_of(tokens(4)), PrefixStop::capped);
  EXPECT_EQ(stop_of(tokens(3)), PrefixStop::less_than_a_block);
  EXPECT_EQ(stop_of({}), PrefixStop::less_than_a_block);
  EXPECT_OK(tables().destroy(first));
}

TEST_F(PrefixMatchTest, AMatchEndsAtTheFirstDifferentBlock) {
  create_cache({});
  computed(tokens(16));
  Tokens other = tokens(16);
  other[9] = 99;  // in the third block
  EXPECT_EQ(match(other).blocks, 2);
  EXPECT_EQ(match(other).stop, PrefixStop::never_seen);
  other = tokens(16);
  other[0] = 99;  // later blocks have the same tokens, and another beginning
  EXPECT_EQ(match(other).blocks, 0);
}

TEST_F(PrefixMatchTest, TheSameTokensAtAnotherPlaceAreNotThere) {
  create_cache({});
  computed({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2});
  EXPECT_EQ(match({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}).blocks, 3);
  EXPECT_EQ(match({2, 1, 1, 1, 1, 1, 1, 1, 1}).blocks, 0);
}

TEST_F(PrefixMatchTest, SaltsDoNotMeet) {
  create_cache({});
  const SequenceId of_one = computed(tokens(12), 1);
  EXPECT_EQ(match(tokens(13), 1).blocks, 3);
  EXPECT_EQ(match(tokens(13), 2).blocks, 0);
  EXPECT_EQ(stop_of(tokens(13), 2), PrefixStop::other_salt);
  EXPECT_EQ(stop_of(tokens(13, 50), 2), PrefixStop::never_seen);
  const SequenceId of_two = computed(tokens(12), 2);
  EXPECT_EQ(match(tokens(13), 2).blocks, 3);
  const Numbers ones = blocks(of_one);
  for (const std::int32_t block : blocks(of_two)) {
    EXPECT_EQ(std::count(ones.begin(), ones.end(), block), 0);
  }
  const SequenceId fork = tables().fork(of_one, 12).value();
  EXPECT_OK(tables().destroy(of_one));
  EXPECT_EQ(match(tokens(13), 1).blocks, 3);
  EXPECT_OK(tables().forget_salt(1));
  EXPECT_EQ(match(tokens(13), 1).blocks, 0);
  EXPECT_EQ(match(tokens(13), 2).blocks, 3);
  EXPECT_OK(tables().destroy(fork));
}

TEST_F(PrefixMatchTest, AForkKeepsTheSaltOfItsParent) {
  create_cache({});
  const SequenceId parent = computed(tokens(6), 5);
  EXPECT_REFUSED(tables().fork(parent, 6, {.salt = 6}), invalid_argument, none);
  const SequenceId fork = tables().fork(parent, 6).value();
  append_rest(fork, tokens(9));
  EXPECT_OK(tables().publish(fork));
  EXPECT_EQ(match(tokens(9), 5).blocks, 2);
  EXPECT_EQ(match(tokens(9), 6).blocks, 0);
  EXPECT_EQ(match(tokens(9), 0).blocks, 0);
}

TEST_F(PrefixMatchTest, ExtraKeysCountFromTheirFirstTokenOn) {
  create_cache({});
  const std::array<ExtraKey, 1> image = {{{.key = 77, .first_token = 5}}};
  const std::array<ExtraKey, 1> other = {{{.key = 78, .first_token = 5}}};
  computed(tokens(13), 0, image);
  EXPECT_EQ(match(tokens(13), 0, image).blocks, 3);
  EXPECT_EQ(match(tokens(13), 0, other).blocks, 1) << "the first block does not depend on it";
  EXPECT_EQ(stop_of(tokens(13), 0, other), PrefixStop::other_extra_key);
  EXPECT_EQ(match(tokens(13)).blocks, 1);
  EXPECT_EQ(stop_of(tokens(13)), PrefixStop::other_extra_key);
  const std::array<ExtraKey, 2> both = {
      {{.key = 77, .first_token = 4}, {.key = 78, .first_token = 7}}};
  EXPECT_EQ(match(tokens(13), 0, both).blocks, 1);
  const std::array<ExtraKey, 1> later = {{{.key = 77, .first_token = 7}}};
  EXPECT_EQ(match(tokens(13), 0, later).blocks, 1) << "tokens 5 and 6 do not depend on it";
  EXPECT_EQ(stop_of(tokens(13), 0, later), PrefixStop::other_extra_key);
  computed(tokens(13), 0, both);
  EXPECT_EQ(match(tokens(13), 0, both).blocks, 3);
}

TEST_F(PrefixMatchTest, WrongExtraKeysAreRefused) {
  create_cache({});
  const std::array<ExtraKey, 3> many = {};
  EXPECT_FAILS(tables().match({.extra_keys = many}), invalid_argument, none);
  const std::array<ExtraKey, 2> falling = {
      {{.key = 1, .first_token = 8}, {.key = 2, .first_token = 7}}};
  EXPECT_REFUSED(tables().create_sequence({.extra_keys = falling}), invalid_argument, none);
  EXPECT_EQ(tables().match({.extra_keys = falling}).status().option, Option::first_token);
}

TEST_F(PrefixMatchTest, EvictionIsSaidWithItsCause) {
  create_cache({.num_blocks = 4});
  EXPECT_OK(tables().destroy(computed(tokens(12))));
  EXPECT_EQ(manager().stats().evictable, 3);
  const SequenceId other = sequence(8);  // takes the free block and the tail
  EXPECT_EQ(match(tokens(13)).blocks, 2) << "a tail goes before its head";
  const PrefixMatch found = match(tokens(13));
  EXPECT_EQ(found.stop, PrefixStop::evicted);
  EXPECT_EQ(found.removal, PrefixRemoval::evicted);
  EXPECT_EQ(found.removal_serial, 1U);
  EXPECT_EQ(found.removal_by, other) << "a sequence of the same tenant";
  EXPECT_EQ(tables().match({.tokens = tokens(13), .salt = 1})->removal_by, kNoSequence);
  EXPECT_EQ(stats().removals_by[static_cast<std::size_t>(PrefixRemoval::evicted)], 1U);
  EXPECT_OK(tables().forget_all());
  EXPECT_EQ(match(tokens(13)).stop, PrefixStop::evicted);
  EXPECT_EQ(match(tokens(13)).removal, PrefixRemoval::forgotten);
  EXPECT_EQ(manager().stats().evictable, 0);
  EXPECT_OK(tables().destroy(other));
}

/// One append grows two sequences of different tenants: each is named for what it took, and to its
/// own tenant alone.
TEST_F(PrefixMatchTest, WhoTookABlockIsSaidToItsOwnTenantAlone) {
  create_cache({.num_blocks = 4});
  EXPECT_OK(tables().destroy(computed(tokens(16))));
  const SequenceId own = tables().create_sequence().value();
  const SequenceId foreign = tables().create_sequence({.salt = 9}).value();
  const std::array<AppendDemand, 2> demands{AppendDemand{.sequence = foreign, .num_tokens = 4},
                                            AppendDemand{.sequence = own, .num_tokens = 4}};
  EXPECT_OK(tables().append(demands));
  const PrefixMatch of_foreign = match(tokens(17));  // its third block: the second that was taken
  EXPECT_EQ(of_foreign.blocks, 2);
  EXPECT_EQ(of_foreign.removal_serial, 2U);
  EXPECT_EQ(of_foreign.removal_by, own);
  EXPECT_OK(tables().destroy(own));
  EXPECT_OK(tables().destroy(foreign));
  // The last block went first, for the other tenant: nobody is told who that was.
  const SequenceId again = computed(tokens(12));
  const PrefixMatch found = match(tokens(17));
  EXPECT_EQ(found.blocks, 3);
  EXPECT_EQ(found.removal, PrefixRemoval::evicted);
  EXPECT_EQ(found.removal_serial, 1U);
  EXPECT_EQ(found.removal_by, kNoSequence);
  EXPECT_OK(tables().destroy(again));
}

TEST_F(PrefixMatchTest, AnExplanationSaysFromWhomEvictionWouldTakeWithoutAccounts) {
  create_cache({.num_blocks = 16});
  EXPECT_OK(tables().destroy(computed(tokens(16))));
  EXPECT_OK(tables().destroy(computed(tokens(8), 5)));
  EXPECT_OK(tables().destroy(computed(tokens(20), 7)));
  const SequenceId user = tables().create_sequence({.tokens = tokens(9), .salt = 7}).value();
  const Explanation e = tables().explain(1);
  ASSERT_EQ(e.num_salts, 3U);
  const std::array<SaltShare, 3> expected{SaltShare{0, 4}, SaltShare{7, 3}, SaltShare{5, 2}};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(e.evictable_salts[i].salt, expected[i].salt);
    EXPECT_EQ(e.evictable_salts[i].blocks, expected[i].blocks);
  }
  EXPECT_EQ(e.evictable_of_others, 0);
  EXPECT_EQ(tables().explain(1, Urgency::growth, false).num_salts, 0U);
  EXPECT_OK(tables().destroy(user));
}

TEST_F(PrefixMatchTest, OnlyPublishedBlocksMatch) {
  create_cache({});
  const SequenceId first = begin(tokens(9));
  append_rest(first, tokens(9));
  EXPECT_EQ(manager().content(tables().lookup(first, 0).value()), BlockContent::being_written);
  const PrefixMatch waiting = match(tokens(9));
  EXPECT_EQ(waiting.blocks, 0);
  EXPECT_EQ(waiting.stop, PrefixStop::not_yet_published);
  EXPECT_EQ(waiting.pending_block, tables().lookup(first, 0).value());
  EXPECT_OK(tables().publish(first, 7));
  EXPECT_EQ(match(tokens(9)).blocks, 1);
  EXPECT_EQ(stop_of(tokens(9)), PrefixStop::not_yet_published);
  EXPECT_OK(tables().publish(first));
  EXPECT_EQ(match(tokens(9)).blocks, 2);
  EXPECT_REFUSED(tables().publish(first, 10), invalid_argument, sequence_length);
  EXPECT_REFUSED(tables().publish(first, -2), invalid_argument, sequence_length);
}

TEST_F(PrefixMatchTest, ALongPromptIsFoundBlockByBlock) {
  create_cache({.num_blocks = 200, .block_size = 1});
  const SequenceId first = computed(tokens(150));
  EXPECT_EQ(match(tokens(151)).blocks, 150);
  EXPECT_OK(tables().truncate(first, 100));
  EXPECT_EQ(match(tokens(151)).blocks, 150) << "what is cut stays cached";
  EXPECT_EQ(manager().stats().evictable, 50);
}

TEST_F(PrefixMatchTest, AMatchChangesNothing) {
  create_cache({});
  EXPECT_OK(tables().destroy(computed(tokens(12))));
  const auto before = picture();
  const PrefixStats counted = stats();
  EXPECT_EQ(match(tokens(13)).blocks, 3);
  EXPECT_TRUE(before == picture());
  EXPECT_EQ(counted.queries, stats().queries);
}

TEST_F(PrefixMatchTest, FiguresCountQueriesAndHits) {
  create_cache({});
  computed(tokens(10));
  computed(tokens(14));
  const PrefixStats s = stats();
  EXPECT_EQ(s.queries, 2U);
  EXPECT_EQ(s.query_tokens, 24U);
  EXPECT_EQ(s.hits, 1U);
  EXPECT_EQ(s.hit_blocks, 2U);
  EXPECT_EQ(s.hit_tokens, 8U);
  EXPECT_EQ(s.registrations, 3U);
  EXPECT_EQ(s.registered, 3);
  EXPECT_EQ(s.published, 3);
  EXPECT_EQ(s.stops[static_cast<std::size_t>(PrefixStop::never_seen)], 2U);
}

TEST_F(PrefixMatchTest, WithoutACacheEachCallSaysSo) {
  create(16, 4);
  const SequenceId id = tables().create_sequence({.tokens = tokens(9), .salt = 3}).value();
  EXPECT_EQ(length(id), 0);
  for (const Status& status :
       {tables().match({}).status(), tables().adopt(id, {}).status(),
        tables().prefix_of(id).status(), tables().register_tokens(id, {}), tables().publish(id),
        tables().forget(id), tables().forget_salt(0), tables().forget_all()}) {
    EXPECT_EQ(status.code, StatusCode::failed_precondition);
    EXPECT_EQ(status.option, Option::prefix_cache);
  }
  EXPECT_EQ(stats().queries, 0U);
}

TEST_F(PrefixMatchTest, WrongOptionsAreRefused) {
  auto manager = BlockManager::create({.num_blocks = 4}).value();
  BlockTablesOptions options{.prefix_cache = {.is_on = true}};
  options.prefix_cache.max_extra_keys = PrefixOptions::kMostExtraKeys + 1;
  EXPECT_EQ(BlockTables::create(manager, options).status().option, Option::max_extra_keys);
  options.prefix_cache.max_extra_keys = 0;
  options.prefix_cache.history_entries = -1;
  EXPECT_EQ(BlockTables::create(manager, options).status().option, Option::history_entries);
  options.prefix_cache.history_entries = 1;
  options.prefix_cache.duplicates = static_cast<DuplicateRule>(9);
  EXPECT_EQ(BlockTables::create(manager, options).status().option, Option::duplicates);
  options.prefix_cache.duplicates = DuplicateRule::wait;
  EXPECT_OK(BlockTables::create(manager, options).status()) << "a key is drawn";
}

/// What a prefix cache takes of its own, without its sequences.
std::int64_t bytes_of_blocks(std::int64_t num_blocks) {
  const auto more = [num_blocks](std::int32_t max_sequences) {
    const BlockTablesOptions off{.max_sequences = max_sequences};
    BlockTablesOptions on = off;
    on.prefix_cache.is_on = true;
    return BlockTables::host_bytes(num_blocks, on) - BlockTables::host_bytes(num_blocks, off);
  };
  return more(16) - 16 * (more(17) - more(16));
}

TEST_F(PrefixMatchTest, MemoryIsAtMost64BytesABlockAndTheTokens) {
  // The hashes of the blocks that are being added, and a note that stands for none in each history.
  constexpr std::int64_t kOfNoBlock =
      BlockTables::kPageEntries * sizeof(Hash128) + 2 * sizeof(PrefixHistory::Note);
  for (const std::int64_t num_blocks :
       {16, 1'000, 1'024, 1'025, 1'040, 10'000, 65'536, 65'552, 1 << 20}) {
    // Small pools have reasons of 64 removals and registrations, however few their blocks.
    const std::int64_t reasons =
        num_blocks <= 1'024 ? 2 * PrefixHistory::bytes(64) + PrefixEvictions::bytes(16) : 0;
    EXPECT_LE(bytes_of_blocks(num_blocks), num_blocks * (64 + 16 * 4) + reasons + kOfNoBlock)
        << num_blocks;
  }
}

}  // namespace
}  // namespace kvarena::test
