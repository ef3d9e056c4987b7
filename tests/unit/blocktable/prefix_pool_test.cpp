// What a prefix pool finds for an engine with block tables of its own, and how blocks come and go.

#include "unit/blocktable/prefix_pool_fixture.hpp"

#include <algorithm>
#include <utility>

namespace kvarena::test {
namespace {

TEST_F(PrefixPoolTest, BlocksOfAFinishedSequenceAreFoundByTheNext) {
  Line one = computed(tokens(10));
  const Ids its = one.ids;
  EXPECT_EQ(one.position.blocks, 2);
  end(one);
  EXPECT_EQ(manager_->stats().evictable, 2);
  EXPECT_EQ(manager_->stats().free, 14);
  Line two = begin(tokens(11));
  EXPECT_EQ(two.found.tokens, 8);
  EXPECT_EQ(two.found.blocks, 2);
  EXPECT_EQ(two.found.stop, PrefixStop::less_than_a_block);
  EXPECT_EQ(first(two.ids, 2), first(its, 2));
  EXPECT_EQ(two.position.blocks, 2);
  EXPECT_EQ(manager_->stats().evictable, 0);
  const PrefixStats now = stats();
  EXPECT_EQ(now.queries, 2U);
  EXPECT_EQ(now.hits, 1U);
  EXPECT_EQ(now.hit_tokens, 8U);
  EXPECT_EQ(now.query_tokens, 21U);
}

TEST_F(PrefixPoolTest, MatchWritesWhatThereIsRoomForAndChangesNothing) {
  Line one = computed(tokens(13));
  const PrefixStats before = stats();
  Ids ids(2);
  std::vector<Generation> generations(2);
  const PrefixMatch found = pool_->match({tokens(13)}, ids, generations).value();
  EXPECT_EQ(found.blocks, 3);
  EXPECT_EQ(ids, first(one.ids, 2));
  EXPECT_EQ(stats().queries, before.queries);
  EXPECT_FAILS(pool_->match({tokens(13)}, ids, {}), invalid_argument, span_size);
}

TEST_F(PrefixPoolTest, OneTokenIsLeftToCompute) {
  computed(tokens(8));
  EXPECT_EQ(match(tokens(8)).tokens, 4);
  EXPECT_EQ(match(tokens(8)).stop, PrefixStop::capped);
  EXPECT_EQ(match(tokens(9)).tokens, 8);
  EXPECT_EQ(match(tokens(3)).stop, PrefixStop::less_than_a_block);
  EXPECT_EQ(match({}).tokens, 0);
}

TEST_F(PrefixPoolTest, ASequenceThatGrowsIsRegisteredBlockByBlock) {
  Line line = begin(tokens(16));
  PrefixPosition at = pool_->begin();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(pool_
                  ->register_blocks(at, std::span(line.tokens).subspan(i * kSize, kSize),
                                    std::span(line.ids).subspan(i, 1),
                                    std::span(line.generations).subspan(i, 1))
                  .value(),
              1);
    EXPECT_EQ(match(tokens(17)).blocks, static_cast<std::int64_t>(i));
    EXPECT_EQ(match(tokens(17)).stop, PrefixStop::not_yet_published);
    EXPECT_EQ(match(tokens(17)).pending_block, line.ids[i]);
    EXPECT_EQ(
        pool_->publish(std::span(line.ids).subspan(i, 1), std::span(line.generations).subspan(i, 1))
            .value(),
        1);
  }
  EXPECT_EQ(match(tokens(17)).blocks, 4);
  EXPECT_EQ(publish(line).value(), 0) << "all are published";
}

TEST_F(PrefixPoolTest, MissesHaveTheirReasons) {
  const std::vector<ExtraKey> image = {{.key = 77, .first_token = 5}};
  Line one = computed(tokens(13), 3, image);
  EXPECT_EQ(match(tokens(13), 3, image).blocks, 3);
  EXPECT_EQ(match(tokens(13), 4, image).stop, PrefixStop::other_salt);
  const std::vector<ExtraKey> other = {{.key = 78, .first_token = 5}};
  EXPECT_EQ(match(tokens(13), 3, other).blocks, 1) << "the first block does not depend on it";
  EXPECT_EQ(match(tokens(13), 3, other).stop, PrefixStop::other_extra_key);
  EXPECT_EQ(match(tokens(13), 3).stop, PrefixStop::other_extra_key);
  const std::vector<ExtraKey> later = {{.key = 77, .first_token = 6}};
  EXPECT_EQ(match(tokens(13), 3, later).blocks, 1);
  EXPECT_EQ(match(tokens(13, 50), 3, image).stop, PrefixStop::never_seen);
  Tokens changed = tokens(13);
  changed[9] = 99;
  EXPECT_EQ(match(changed, 3, image).blocks, 2);
  EXPECT_OK(pool_->forget(std::span(one.ids).first(1)));
  EXPECT_EQ(match(tokens(13), 3, image).stop, PrefixStop::evicted);
  EXPECT_EQ(match(tokens(13), 3, image).removal, PrefixRemoval::forgotten);
  EXPECT_EQ(match(tokens(13), 3, image).removal_serial, 3U) << "the first block goes last";
}

TEST_F(PrefixPoolTest, AdoptionsWithExtraKeysGoOnWhereTheyEnd) {
  const std::vector<ExtraKey> keys = {{.key = 5, .first_token = 2}, {.key = 6, .first_token = 9}};
  computed(tokens(8), 1, keys);
  Line two = begin(tokens(13), 1, keys);
  EXPECT_EQ(two.found.blocks, 2);
  EXPECT_EQ(two.position.num_keys, 1);
  EXPECT_EQ(register_rest(two).value(), 1);
  EXPECT_EQ(two.position.num_keys, 2);
  EXPECT_OK(publish(two));
  EXPECT_EQ(match(tokens(13), 1, keys).blocks, 3);
  EXPECT_EQ(match(tokens(13), 1, std::span(keys).first(1)).blocks, 2);
}

TEST_F(PrefixPoolTest, SaltsDoNotMeet) {
  Line ones = computed(tokens(12), 1);
  Line twos = computed(tokens(12), 2);
  EXPECT_EQ(twos.found.blocks, 0);
  for (const BlockId id : twos.ids) EXPECT_EQ(std::ranges::count(ones.ids, id), 0);
  pool_->forget_salt(1);
  EXPECT_EQ(match(tokens(13), 1).blocks, 0);
  EXPECT_EQ(match(tokens(13), 2).blocks, 3);
  pool_->forget_all();
  EXPECT_EQ(match(tokens(13), 2).blocks, 0);
  EXPECT_EQ(stats().registered, 0);
}

TEST_F(PrefixPoolTest, AnEqualBlockIsNotRegisteredAgain) {
  Line one = begin(tokens(8));
  Line two = begin(tokens(12));
  EXPECT_OK(register_rest(one));
  EXPECT_EQ(register_rest(two).value(), 1) << "the third block alone";
  EXPECT_EQ(stats().duplicates, 2U);
  EXPECT_EQ(publish(two).value(), 1);
  EXPECT_EQ(match(tokens(13)).stop, PrefixStop::not_yet_published);
  EXPECT_EQ(publish(one).value(), 2);
  Ids ids(3);
  std::vector<Generation> generations(3);
  EXPECT_EQ(pool_->match({tokens(13)}, ids, generations)->blocks, 3);
  EXPECT_EQ(ids, (Ids{one.ids[0], one.ids[1], two.ids[2]}));
  end(two);
  EXPECT_EQ(manager_->stats().evictable, 1) << "its equals are free at once";
}

TEST_F(PrefixPoolTest, AForkCopiesThePosition) {
  Line parent = computed(tokens(8));
  PrefixPosition fork = parent.position;
  HolderId holder = manager_->register_holder({}).value();
  Ids ids(2);
  std::vector<Generation> generations(2);
  EXPECT_OK(manager_->allocate(holder, ids, generations));
  const Tokens left = tokens(4, 20);
  const Tokens right = tokens(4, 30);
  EXPECT_OK(pool_->register_blocks(parent.position, left, std::span(ids).first(1),
                                   std::span(generations).first(1)));
  EXPECT_OK(
      pool_->register_blocks(fork, right, std::span(ids).last(1), std::span(generations).last(1)));
  EXPECT_OK(pool_->publish(ids, generations));
  for (const Tokens& end : {left, right}) {
    Tokens whole = tokens(8);
    whole.insert(whole.end(), end.begin(), end.end());
    whole.push_back(0);
    EXPECT_EQ(match(whole).blocks, 3);
  }
}

TEST_F(PrefixPoolTest, EvictionsUnregister) {
  Line one = computed(tokens(12));
  const Ids its = one.ids;
  end(one);
  EXPECT_EQ(manager_->stats().evictable, 3);
  Line big = begin(tokens(56, 100));  // 14 blocks: one of them is evicted, the last of the prefix
  EXPECT_EQ(manager_->evicted().size(), 1U);
  EXPECT_EQ(manager_->evicted()[0], its[2]);
  EXPECT_EQ(match(tokens(13)).blocks, 2);
  EXPECT_EQ(match(tokens(13)).stop, PrefixStop::evicted);
  EXPECT_EQ(match(tokens(13)).removal, PrefixRemoval::evicted);
  EXPECT_EQ(stats().removals_by[static_cast<std::size_t>(PrefixRemoval::evicted)], 1U);
}

/// The blocks behind an evicted one come free while `notice` reads the list of evicted blocks.
TEST_F(PrefixPoolTest, EvictionsWithBlocksBehindThemAreAllNoticed) {
  create({.num_blocks = 6, .eviction = EvictionPolicy::fifo});
  for (const Tokens& list : {tokens(4), tokens(4, 50), tokens(16), tokens(4, 90)}) {
    Line line = computed(list);
    end(line);
  }
  EXPECT_EQ(manager_->stats().evictable, 6);
  Line large = begin(tokens(8, 200));
  EXPECT_EQ(manager_->evicted().size(), 2U);
  EXPECT_EQ(first({manager_->evicted().begin(), manager_->evicted().end()}, 2), large.ids);
  EXPECT_EQ(stats().registered, 1);
  EXPECT_EQ(stats().removals_by[static_cast<std::size_t>(PrefixRemoval::evicted)], 2U);
  EXPECT_EQ(match(tokens(5, 50)).removal, PrefixRemoval::evicted);
  EXPECT_EQ(match(tokens(5, 90)).blocks, 1);
}

TEST_F(PrefixPoolTest, WhatIsNotToldIsNeverMatched) {
  Line one = computed(tokens(12));
  end(one);
  HolderId holder = manager_->register_holder({}).value();
  Ids ids(16);
  std::vector<Generation> generations(16);
  EXPECT_OK(manager_->allocate(holder, ids, generations));
  EXPECT_EQ(match(tokens(13)).blocks, 0);
  EXPECT_EQ(match(tokens(13)).removal, PrefixRemoval::lost);
  expect_whole();
  pool_->notice(ids);
  EXPECT_EQ(match(tokens(13)).removal, PrefixRemoval::evicted);
  EXPECT_EQ(stats().registered, 0);
}

TEST_F(PrefixPoolTest, ABlockReleasedBeforeItIsPublishedIsNotWaitedFor) {
  create({.duplicates = DuplicateRule::wait});
  Line one = begin(tokens(8));
  EXPECT_OK(register_rest(one));
  HolderId holder = manager_->register_holder({}).value();
  Ids ids(2);
  std::vector<Generation> generations(2);
  EXPECT_FAILS(pool_->adopt(holder, {tokens(9)}, ids, generations), failed_precondition, content);
  EXPECT_EQ(stats().queries, 1U);
  EXPECT_OK(manager_->release(one.holder, one.ids, one.generations));
  EXPECT_EQ(match(tokens(9)).stop, PrefixStop::never_seen) << "not told yet";
  EXPECT_EQ(pool_->adopt(holder, {tokens(9)}, ids, generations)->found.blocks, 0);
  pool_->notice(one.ids);
  EXPECT_EQ(stats().removals_by[static_cast<std::size_t>(PrefixRemoval::aborted)], 1U);
  EXPECT_EQ(stats().removals_by[static_cast<std::size_t>(PrefixRemoval::parent_removed)], 1U);
}

TEST_F(PrefixPoolTest, ForgottenBlocksCanBeRegisteredAnew) {
  Line one = computed(tokens(12));
  EXPECT_OK(pool_->forget(std::span(one.ids).subspan(1, 1)));
  EXPECT_EQ(match(tokens(13)).blocks, 1);
  EXPECT_EQ(stats().removals_by[static_cast<std::size_t>(PrefixRemoval::parent_removed)], 1U);
  EXPECT_FAILS(register_rest(one), stale_handle, block);
  one.position = pool_->begin();
  EXPECT_EQ(register_rest(one).value(), 2) << "the first one is still registered";
  EXPECT_EQ(stats().duplicates, 0U);
  EXPECT_OK(publish(one));
  EXPECT_EQ(match(tokens(13)).blocks, 3);
}

TEST_F(PrefixPoolTest, AQuarantinedBlockIsNotFound) {
  Line one = computed(tokens(12));
  const Ids its = one.ids;
  end(one);
  EXPECT_TRUE(manager_->quarantine(its[1]).value());
  EXPECT_EQ(match(tokens(13)).blocks, 1);
  pool_->notice(its);
  EXPECT_EQ(stats().removals_by[static_cast<std::size_t>(PrefixRemoval::lost)], 1U);
  EXPECT_EQ(stats().registered, 1);
  EXPECT_EQ(manager_->stats().evictable, 1) << "what was behind it is free";
  EXPECT_OK(manager_->restore(its[1]));
}

TEST_F(PrefixPoolTest, ContentSetByOthersIsLost) {
  Line one = begin(tokens(8));
  EXPECT_OK(register_rest(one));
  EXPECT_OK(manager_->set_content(one.ids[0], one.generations[0], BlockContent::failed));
  EXPECT_EQ(publish(one).value(), 0) << "what is behind it goes too";
  EXPECT_EQ(stats().registered, 0);
  EXPECT_EQ(match(tokens(9)).blocks, 0);
}

TEST_F(PrefixPoolTest, AnEqualThatIsGoneMakesRoom) {
  Line one = begin(tokens(8));
  Line two = begin(tokens(8));
  EXPECT_OK(register_rest(one));
  EXPECT_OK(manager_->release(one.holder, one.ids, one.generations));  // not told
  EXPECT_EQ(register_rest(two).value(), 2);
  EXPECT_OK(publish(two));
  EXPECT_EQ(match(tokens(9)).blocks, 2);
  EXPECT_EQ(stats().registered, 2);
}

TEST_F(PrefixPoolTest, AnEqualThatIsGoneTakesWhatIsBehindIt) {
  Line one = begin(tokens(4));
  Line two = begin(tokens(8));
  EXPECT_OK(register_rest(one));
  EXPECT_EQ(register_rest(two).value(), 1) << "behind the block of the first";
  EXPECT_OK(manager_->release(one.holder, one.ids, one.generations));  // not told
  two.position = pool_->begin();
  EXPECT_EQ(register_rest(two).value(), 2);
  EXPECT_EQ(publish(two).value(), 2);
  EXPECT_EQ(match(tokens(9)).blocks, 2);
}

TEST_F(PrefixPoolTest, EventsTellSaltsAndAreEnoughToRebuild) {
  struct Seen {
    std::vector<std::pair<BlockId, std::uint64_t>> stored;
    std::vector<BlockId> removed;
  } seen;
  create({.events = {[](const PrefixEvent& event, void* to) {
                       Seen& its = *static_cast<Seen*>(to);
                       if (event.kind == PrefixEventKind::stored) {
                         its.stored.emplace_back(event.block, event.salt);
                       } else if (event.kind == PrefixEventKind::removed) {
                         its.removed.push_back(event.block);
                       }
                     },
                     &seen}});
  Line one = computed(tokens(8), 9);
  EXPECT_EQ(seen.stored, (decltype(seen.stored){{one.ids[0], 9}, {one.ids[1], 9}}));
  EXPECT_OK(pool_->forget(std::span(one.ids).first(1)));
  EXPECT_EQ(seen.removed, (Ids{one.ids[1], one.ids[0]}));
  pool_.reset();  // the sink outlives it
  create({});
}

TEST_F(PrefixPoolTest, LongPromptsGoInManyRuns) {
  create({.num_blocks = 200});
  Line one = computed(tokens(4 * 70));
  EXPECT_EQ(match(tokens(4 * 70 + 1)).blocks, 70);
  Line two = begin(tokens(4 * 100 + 2));
  EXPECT_EQ(two.found.blocks, 70);
  EXPECT_EQ(register_rest(two).value(), 30);
  EXPECT_OK(publish(two));
  PrefixPosition at = pool_->begin();
  EXPECT_EQ(
      pool_
          ->register_blocks(at, std::span(two.tokens).first(4 * 100), std::span(two.ids).first(100),
                            std::span(two.generations).first(100))
          .value(),
      0);
  EXPECT_EQ(at.blocks, 100);
  EXPECT_EQ(at.last, two.position.last);
  EXPECT_EQ(at.chain, two.position.chain);
}

TEST_F(PrefixPoolTest, TheEndForgetsAll) {
  Line one = computed(tokens(12));
  end(one);
  EXPECT_EQ(manager_->stats().evictable, 3);
  PrefixPool other = std::move(*pool_);
  EXPECT_EQ(manager_->stats().evictable, 3);
  *pool_ = PrefixPool::create(*manager_, {.block_size_tokens = 4}).value();
  { const PrefixPool ends = std::move(other); }
  EXPECT_EQ(manager_->stats().evictable, 0);
}

TEST_F(PrefixPoolTest, GhostsAndTimesAreTold) {
  pool_.emplace(
      PrefixPool::create(*manager_, {.block_size_tokens = 4, .prefix = {.ghost_blocks = 64}})
          .value());
  Line one = computed(tokens(8));
  Line two = begin(tokens(9));
  EXPECT_EQ(two.found.blocks, 2);
  EXPECT_GT(pool_->use().ghost_references, 0U);
  EXPECT_EQ(pool_->use().reuse_gap.total(), 2U);
}

}  // namespace
}  // namespace kvarena::test
