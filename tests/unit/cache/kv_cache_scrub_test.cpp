// KvCacheOptions::scrub: what another tenant finds in the blocks it gets, byte by byte.

#include "support/faulty_device.hpp"
#include "support/status_matchers.hpp"
#include "unit/cache/scrub_cache.hpp"
#include "unit/cache/small_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace kvarena {
namespace {

using test::is_zero;
using test::ScrubCache;
using test::ScrubShape;

constexpr std::uint64_t kAnn = 7;
constexpr std::uint64_t kBob = 8;

class KvCacheScrub : public ::testing::TestWithParam<ScrubShape> {
 protected:
  void SetUp() override { KVARENA_NEEDS_DEVICE(GetParam().kind); }

  /// How many slots of a block, from token `first` on, are not all zero.
  static std::int64_t dirty_slots(ScrubCache& t, BlockId block, std::int64_t first = 0) {
    const std::vector<std::byte> pool = t.pool();
    std::int64_t dirty = 0;
    for (std::int64_t token = first; token < t.block_size(); ++token) {
      dirty += is_zero(t.token_bytes(pool, block, token)) ? 0 : 1;
    }
    return dirty;
  }
  static std::int64_t dirty_slots(ScrubCache& t, const std::vector<BlockId>& blocks) {
    std::int64_t dirty = 0;
    for (const BlockId block : blocks) dirty += dirty_slots(t, block);
    return dirty;
  }
  /// Tokens that fill the pool.
  static std::int32_t all_tokens(const ScrubCache& t) {
    return static_cast<std::int32_t>(t.cache.arena().num_blocks() * t.block_size());
  }
  /// Fills the pool with tokens of an owner, who leaves.
  static void fill_and_leave(ScrubCache& t, std::uint64_t owner) {
    const SequenceId id = t.create(owner);
    ASSERT_OK(t.grow(id, all_tokens(t), 1.5F));
    ASSERT_EQ(dirty_slots(t, t.blocks_of(id)), all_tokens(t));
    ASSERT_OK(t.cache.destroy(id));
  }
  /// What `owner` finds in three blocks that its sequence gets, before and after it writes one
  /// token less than they hold. Slots that are not zero.
  struct Found {
    std::int64_t before = 0;
    std::int64_t after = 0;
    std::int64_t written = 0;
  };
  static Found found_by(ScrubCache& t, std::uint64_t owner) {
    const SequenceId id = t.create(owner);
    const auto tokens = static_cast<std::int32_t>(3 * t.block_size() - 1);
    Found found{.written = tokens};
    EXPECT_OK(t.begin({{id, tokens}}));
    const std::vector<BlockId> blocks = t.blocks_of(id);
    EXPECT_EQ(blocks.size(), 3U);
    found.before = dirty_slots(t, blocks);
    EXPECT_OK(t.write(std::vector<float>(static_cast<std::size_t>(tokens), 2.5F)));
    EXPECT_OK(t.end());
    found.after = dirty_slots(t, blocks);
    return found;
  }
};
INSTANTIATE_TEST_SUITE_P(Shapes, KvCacheScrub, ::testing::ValuesIn(test::scrub_shapes()),
                         test::shape_name);

TEST_P(KvCacheScrub, NeverLeavesWhatTheTenantBeforeWrote) {
  ScrubCache t(GetParam(), Scrub::never);
  fill_and_leave(t, kAnn);
  const Found found = found_by(t, kBob);
  EXPECT_EQ(found.before, found.written + 1);
  EXPECT_EQ(found.after, found.written + 1);
}

TEST_P(KvCacheScrub, AnotherTenantFindsZeros) {
  for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
    ScrubCache t(GetParam(), scrub);
    fill_and_leave(t, kAnn);
    const Found found = found_by(t, kBob);
    EXPECT_EQ(found.before, 0);
    EXPECT_EQ(found.after, found.written) << "the tokens written, and nothing else";
    EXPECT_OK(t.cache.check_invariants());
  }
}

TEST_P(KvCacheScrub, TheSameTenantFindsItsOwnUnlessAlways) {
  ScrubCache t(GetParam(), Scrub::on_owner_change);
  fill_and_leave(t, kAnn);
  EXPECT_EQ(found_by(t, kAnn).before, 3 * t.block_size());
  ScrubCache always(GetParam(), Scrub::always);
  fill_and_leave(always, kAnn);
  EXPECT_EQ(found_by(always, kAnn).before, 0);
}

TEST_P(KvCacheScrub, ABlockThatTwoTenantsWroteIsNeithersOwn) {
  for (const bool copies : {false, true}) {
    ScrubCache t(GetParam(), Scrub::on_owner_change);
    if (t.block_size() < 3) continue;
    const SequenceId ann = t.create(kAnn);
    ASSERT_OK(t.grow(ann, 2, 1.5F));
    const SequenceId bob = t.cache.fork(ann, 2, {.owner = kBob}).value();
    if (!copies) {
      ASSERT_OK(t.cache.destroy(ann));
    }
    ASSERT_OK(t.grow(bob, 1, 2.5F));
    const std::vector<BlockId> mixed = t.blocks_of(bob);
    ASSERT_OK(t.cache.destroy(bob));
    const SequenceId next = t.create(kBob);
    ASSERT_OK(t.begin({{next, 1}}));
    EXPECT_EQ(t.blocks_of(next), mixed) << "the block released last";
    EXPECT_EQ(dirty_slots(t, t.blocks_of(next)), 0) << "copied " << copies;
    EXPECT_OK(t.write({3.5F}));
    EXPECT_OK(t.end());
  }
}

TEST_P(KvCacheScrub, SequencesWithoutAnOwnerAreOwnersOfTheirOwn) {
  ScrubCache t(GetParam(), Scrub::on_owner_change);
  fill_and_leave(t, 0);
  EXPECT_EQ(found_by(t, 0).before, 0);
}

TEST_P(KvCacheScrub, BlocksThatNobodyUsedAreCleared) {
  for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
    ScrubCache t(GetParam(), scrub);
    EXPECT_EQ(found_by(t, kAnn).before, 0);
  }
}

TEST_P(KvCacheScrub, ReservedBlocksAreClearedWhenTokensEnterThem) {
  ScrubCache t(GetParam(), Scrub::on_owner_change);
  fill_and_leave(t, kAnn);
  const SequenceId id = t.create(kBob);
  const std::int64_t size = t.block_size();
  ASSERT_OK(t.cache.reserve_capacity(id, 3 * size));
  const std::vector<BlockId> blocks = t.blocks_of(id);
  ASSERT_OK(t.grow(id, static_cast<std::int32_t>(size), 2.5F));
  EXPECT_EQ(dirty_slots(t, blocks[1]), size) << "no token yet";
  ASSERT_OK(t.begin({{id, static_cast<std::int32_t>(size + 1)}}));
  EXPECT_EQ(dirty_slots(t, blocks[0]), size) << "its own tokens";
  EXPECT_EQ(dirty_slots(t, blocks[1]), 0);
  EXPECT_EQ(dirty_slots(t, blocks[2]), 0);
  ASSERT_OK(t.end());
}

// ---- forks --------------------------------------------------------------------------------------

/// A parent of one block, full, and a fork of its first two tokens.
struct Family {
  Family(ScrubCache& t, std::uint64_t parent_owner, std::uint64_t child_owner) {
    parent = t.create(parent_owner);
    EXPECT_OK(t.grow(parent, static_cast<std::int32_t>(t.block_size()), 1.5F));
    child = t.cache.fork(parent, 2, {.owner = child_owner}).value();
    block = t.blocks_of(parent).front();
  }
  SequenceId parent;
  SequenceId child;
  BlockId block;  ///< the parent's
};

TEST_P(KvCacheScrub, ACopyOnWriteHasTheSharedTokensAlone) {
  for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
    ScrubCache t(GetParam(), scrub);
    fill_and_leave(t, kBob);
    const Family family(t, kAnn, scrub == Scrub::always ? kAnn : kBob);
    ASSERT_OK(t.begin({{family.child, 1}}));
    const BlockId copy = t.blocks_of(family.child).front();
    ASSERT_NE(copy, family.block);
    EXPECT_EQ(dirty_slots(t, copy), 2);
    EXPECT_EQ(dirty_slots(t, copy, 2), 0) << "none of the parent's later tokens";
    ASSERT_OK(t.write({2.5F}));
    ASSERT_OK(t.end());
    const std::vector<std::byte> pool = t.pool();
    for (const std::int64_t token : {0, 1}) {
      EXPECT_EQ(t.token_bytes(pool, copy, token), t.token_bytes(pool, family.block, token));
    }
    EXPECT_EQ(dirty_slots(t, copy), 3);
    EXPECT_EQ(dirty_slots(t, family.block), t.block_size()) << "the parent's stays as it is";
  }
}

TEST_P(KvCacheScrub, NeverCopiesTheWholeBlock) {
  ScrubCache t(GetParam(), Scrub::never);
  const Family family(t, kAnn, kBob);
  ASSERT_OK(t.begin({{family.child, 1}}));
  EXPECT_EQ(dirty_slots(t, t.blocks_of(family.child).front()), t.block_size());
  ASSERT_OK(t.end());
}

TEST_P(KvCacheScrub, AForkThatInheritsTheBlockKeepsItsSharedTokensAlone) {
  for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
    ScrubCache t(GetParam(), scrub);
    const Family family(t, kAnn, scrub == Scrub::always ? kAnn : kBob);
    ASSERT_OK(t.cache.destroy(family.parent));
    ASSERT_OK(t.begin({{family.child, 1}}));
    ASSERT_EQ(t.blocks_of(family.child).front(), family.block) << "written in place";
    EXPECT_EQ(dirty_slots(t, family.block, 2), 0);
    EXPECT_EQ(dirty_slots(t, family.block), 2);
    ASSERT_OK(t.write({2.5F}));
    ASSERT_OK(t.end());
    const std::int64_t own = std::min<std::int64_t>(4, t.block_size());
    if (own == 4) {
      ASSERT_OK(t.grow(family.child, 1, 2.5F));
    }
    EXPECT_EQ(dirty_slots(t, family.block), own) << "its own tokens are not cleared";
  }
}

/// A fork of another owner shares three tokens of a block, outlives its parent, and adds a fourth.
struct Heir {
  explicit Heir(ScrubCache& t) {
    const SequenceId parent = t.create(kAnn);
    EXPECT_OK(t.grow(parent, 3, 1.5F));
    id = t.cache.fork(parent, 3, {.owner = kBob}).value();
    block = t.blocks_of(id).front();
    EXPECT_OK(t.cache.destroy(parent));
    EXPECT_OK(t.grow(id, 1, 2.5F));
    EXPECT_EQ(t.blocks_of(id).front(), block) << "written in place";
  }
  SequenceId id;
  BlockId block;
};

// The block's last writer is the same owner, but a token of the first owner stands in the middle.
TEST_P(KvCacheScrub, AForkOfAForkFindsNothingOfTheFirstOwner) {
  if (GetParam().block_size < 4) GTEST_SKIP() << "too few tokens for four of them";
  for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
    for (const bool cuts : {false, true}) {
      ScrubCache t(GetParam(), scrub);
      const Heir heir(t);
      SequenceId last = heir.id;
      if (cuts) {
        ASSERT_OK(t.cache.truncate(last, 1));
      } else {
        last = t.cache.fork(heir.id, 1, {.owner = kBob}).value();
        ASSERT_OK(t.cache.destroy(heir.id));
      }
      ASSERT_OK(t.begin({{last, 1}}));
      ASSERT_EQ(t.blocks_of(last).front(), heir.block) << "written in place";
      EXPECT_EQ(dirty_slots(t, heir.block), 1) << "the shared token, cut " << cuts;
      ASSERT_OK(t.write({3.5F}));
      ASSERT_OK(t.end());
      EXPECT_EQ(dirty_slots(t, heir.block), 2);
    }
  }
}

TEST_P(KvCacheScrub, AForkThatGoesOnBehindTheSharedTokensIsNotClearedAgain) {
  if (GetParam().block_size < 5) GTEST_SKIP() << "too few tokens for five of them";
  ScrubCache t(GetParam(), Scrub::on_owner_change);
  const Heir heir(t);
  ASSERT_OK(t.grow(heir.id, 1, 2.5F));
  ASSERT_OK(t.cache.truncate(heir.id, 4));
  ASSERT_OK(t.begin({{heir.id, 1}}));
  EXPECT_EQ(dirty_slots(t, heir.block), 5) << "its own old token stays in the slot";
  ASSERT_OK(t.end());
}

TEST_P(KvCacheScrub, ACopyOfATwoOwnersBlockRemembersTheFirst) {
  if (GetParam().block_size < 4) GTEST_SKIP() << "too few tokens for four of them";
  ScrubCache t(GetParam(), Scrub::on_owner_change);
  const Heir heir(t);
  const SequenceId copied = t.cache.fork(heir.id, 2, {.owner = kBob}).value();
  ASSERT_OK(t.grow(copied, 1, 3.5F));
  const BlockId copy = t.blocks_of(copied).front();
  ASSERT_NE(copy, heir.block);
  ASSERT_OK(t.cache.truncate(copied, 1));
  ASSERT_OK(t.begin({{copied, 1}}));
  ASSERT_EQ(t.blocks_of(copied).front(), copy);
  EXPECT_EQ(dirty_slots(t, copy), 1) << "the second token is the first owner's";
  ASSERT_OK(t.end());
}

// The parent copies three tokens of the block in the same step in which the child clears all but
// two.
TEST_P(KvCacheScrub, OneSharerCopiesWhatTheOtherClears) {
  if (GetParam().block_size < 4) GTEST_SKIP() << "too few tokens for three of them";
  ScrubCache t(GetParam(), Scrub::on_owner_change);
  const SequenceId parent = t.create(kAnn);
  ASSERT_OK(t.grow(parent, 3, 1.5F));
  const SequenceId child = *t.cache.fork(parent, 2, {.owner = kBob});
  const BlockId block = t.blocks_of(parent).front();
  ASSERT_OK(t.begin({{parent, 1}, {child, 1}}));
  const BlockId copy = t.blocks_of(parent).front();
  ASSERT_NE(copy, block);
  ASSERT_EQ(t.blocks_of(child).front(), block) << "the last sharer writes in place";
  EXPECT_EQ(dirty_slots(t, copy), 3);
  EXPECT_EQ(dirty_slots(t, block), 2);
  ASSERT_OK(t.end());
}

TEST_P(KvCacheScrub, WhatAForkCopiedIsItsOwnersWhenTheBlockIsReused) {
  ScrubCache t(GetParam(), Scrub::on_owner_change, 3);
  fill_and_leave(t, kAnn);
  const Family family(t, kAnn, kBob);
  ASSERT_OK(t.grow(family.child, 1, 2.5F));
  const BlockId copy = t.blocks_of(family.child).front();
  ASSERT_OK(t.cache.destroy(family.child));
  const SequenceId next = t.create(kAnn);
  ASSERT_OK(t.begin({{next, 1}}));
  ASSERT_EQ(t.blocks_of(next).front(), copy) << "last released first";
  EXPECT_EQ(dirty_slots(t, copy), 0);
  ASSERT_OK(t.end());
}

// ---- steps that fail ----------------------------------------------------------------------------

TEST_P(KvCacheScrub, WhatAnAbortedStepWroteIsItsOwners) {
  ScrubCache t(GetParam(), Scrub::on_owner_change);
  fill_and_leave(t, kAnn);
  const SequenceId bob = t.create(kBob);
  const std::int64_t size = t.block_size();
  ASSERT_OK(t.begin({{bob, static_cast<std::int32_t>(2 * size)}}));
  const std::vector<BlockId> blocks = t.blocks_of(bob);
  ASSERT_OK(t.write(std::vector<float>(static_cast<std::size_t>(2 * size), 2.5F)));
  ASSERT_OK(t.cache.abort_step());
  EXPECT_EQ(dirty_slots(t, blocks), 2 * size);
  const SequenceId ann = t.create(kAnn);
  ASSERT_OK(t.begin({{ann, static_cast<std::int32_t>(2 * size)}}));
  EXPECT_EQ(t.blocks_of(ann), blocks);
  EXPECT_EQ(dirty_slots(t, blocks), 0) << "the aborted step's tokens";
  ASSERT_OK(t.cache.abort_step());
  EXPECT_OK(t.cache.check_invariants());
}

TEST(KvCacheScrubFailure, WhatWasNotQueuedIsPlannedAgain) {
  const auto inner = HostDevice::create().value();
  test::FaultyDevice device(*inner);
  KvCacheOptions options = test::small_options();
  options.scrub = Scrub::on_owner_change;
  KvCache cache = KvCache::create(device, options).value();
  ASSERT_OK(device.fill(cache.arena().base(), 0xFF, static_cast<std::size_t>(cache.arena().bytes()),
                        cache.stream()));
  const SequenceId id = *cache.create_sequence({.owner = kAnn});
  const std::vector<AppendDemand> demands{{id, 3}};
  ASSERT_OK(cache.begin_step());
  device.fail_after(0);
  EXPECT_FAILS(cache.append(demands), device_error, none);
  ASSERT_OK(cache.append(demands)) << "the same call again";
  ASSERT_OK(cache.end_step());
  ASSERT_OK(cache.synchronize());
  const BlockId block = cache.tables().lookup(id, 0).value();
  EXPECT_EQ(*cache.arena().address(block, 0, PlaneKind::value), std::byte{0});
}

/// A step whose zeros, and all other work, the device skips.
void fail_step(ScrubCache& t, SequenceId id, std::int32_t tokens, bool is_aborted) {
  const auto fail = [](void*) {
    return Status{StatusCode::device_error, Resource::stream, Option::none, 77, 0, 0, 0};
  };
  ASSERT_OK(t.cache.begin_step());
  ASSERT_OK(t.device->launch_host(fail, nullptr, t.cache.stream()));
  const std::vector<AppendDemand> demands{{id, tokens}};
  ASSERT_OK(t.cache.append(demands));
  ASSERT_OK(is_aborted ? t.cache.abort_step() : t.cache.end_step());
  EXPECT_FAILS(t.cache.synchronize(), device_error, stream);
}

TEST(KvCacheScrubFailure, ZerosOfAFailedStepAreMadeAgain) {
  for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
    for (const bool is_aborted : {false, true}) {
      ScrubCache t({"host"}, scrub);
      const SequenceId id = t.create(kAnn);
      fail_step(t, id, 5, is_aborted);
      ASSERT_OK(t.cache.destroy(id));
      const SequenceId next = t.create(kAnn);
      ASSERT_OK(t.begin({{next, 5}}));
      const std::vector<std::byte> pool = t.pool();
      for (const BlockId block : t.blocks_of(next)) {
        for (std::int64_t token = 0; token < t.block_size(); ++token) {
          EXPECT_TRUE(is_zero(t.token_bytes(pool, block, token)));
        }
      }
      ASSERT_OK(t.end());
    }
  }
}

TEST(KvCacheScrubFailure, AForkThatIsCutBehindAFailedStepFindsItsSharedTokensAlone) {
  for (const Scrub scrub : {Scrub::on_owner_change, Scrub::always}) {
    ScrubCache t({"host"}, scrub);
    const Family family(t, kAnn, kBob);
    ASSERT_OK(t.cache.destroy(family.parent));
    fail_step(t, family.child, 1, false);
    ASSERT_OK(t.cache.truncate(family.child, 2));
    ASSERT_OK(t.begin({{family.child, 1}}));
    const std::vector<std::byte> pool = t.pool();
    for (std::int64_t token = 0; token < t.block_size(); ++token) {
      EXPECT_EQ(is_zero(t.token_bytes(pool, family.block, token)), token >= 2) << token;
    }
    ASSERT_OK(t.end());
  }
}

TEST_P(KvCacheScrub, ManyBlocksInAStep) {
  // More than one launch on CUDA takes.
  ScrubShape shape = GetParam();
  if (shape.block_size > 5) GTEST_SKIP() << "the pool would be large for nothing";
  ScrubCache t(shape, Scrub::on_owner_change, 1000, 1000);
  std::vector<AppendDemand> demands;
  for (int i = 0; i < 500; ++i) demands.push_back({t.create(kAnn), 1});
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK(t.begin(demands));
    ASSERT_OK(t.end());
  }
  const std::vector<std::byte> pool = t.pool();
  std::int64_t dirty = 0;
  for (const AppendDemand& demand : demands) {
    const BlockId block = t.blocks_of(demand.sequence).front();
    for (std::int64_t token = 0; token < t.block_size(); ++token) {
      dirty += is_zero(t.token_bytes(pool, block, token)) ? 0 : 1;
    }
  }
  EXPECT_EQ(dirty, 0);
  EXPECT_FALSE(is_zero(t.token_bytes(pool, BlockId(999), 0))) << "not in use, not touched";
}

// ---- options ------------------------------------------------------------------------------------

TEST(KvCacheScrubOptions, AModeThatDoesNotExistIsRefusedByName) {
  const auto device = HostDevice::create().value();
  KvCacheOptions options = test::small_options();
  for (const int mode : {3, 255}) {
    options.scrub = static_cast<Scrub>(mode);
    const Status status = KvCache::create(*device, options).status();
    EXPECT_EQ(status.code, StatusCode::invalid_argument);
    EXPECT_EQ(status.option, Option::scrub);
    EXPECT_EQ(status.subject, static_cast<std::uint64_t>(mode));
    EXPECT_EQ(status.available, 2U);
  }
}

TEST(KvCacheScrubOptions, AForkHasItsParentsOwnerUnlessToldOtherwise) {
  test::SmallCache t;
  const auto owner_of = [&t](SequenceId id) { return t.cache.tables().info(id)->owner; };
  const SequenceId own = *t.cache.create_sequence();
  const SequenceId named = *t.cache.create_sequence({.owner = kAnn});
  EXPECT_EQ(owner_of(own), own.value);
  EXPECT_EQ(owner_of(named), kAnn);
  EXPECT_EQ(owner_of(*t.cache.fork(own, 0)), own.value);
  EXPECT_EQ(owner_of(*t.cache.fork(named, 0, {.owner = kBob})), kBob);
  const HolderReport report = *t.cache.manager().holder(t.cache.tables().info(named)->holder);
  EXPECT_EQ(report.number, named.value) << "reports name the sequence and its owner";
  EXPECT_EQ(report.owner, kAnn);
}

}  // namespace
}  // namespace kvarena
