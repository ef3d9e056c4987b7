// A proof that never fails proves nothing: prefix caches with a planted fault, which it must see.

#include "support/tables_access.hpp"
#include "unit/blocktable/prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace kvarena {

/// Reaches into a prefix cache.
struct PrefixProbe {
  static PrefixCache& cache(const BlockTables& tables) { return *test::parts_of(tables).prefix; }
  static PrefixIndex& index(const BlockTables& tables) { return cache(tables).index_; }
  static PrefixStats& stats(const BlockTables& tables) { return cache(tables).stats_; }
  static PrefixChain& chain(const BlockTables& tables, SequenceId id) {
    return cache(tables).chains_[SequenceTable::slot_of(id)];
  }
  static void remove(const BlockTables& tables, BlockId id) {
    cache(tables).remove(id, PrefixRemoval::evicted);
  }
};

namespace test {
namespace {

class PrefixFaultsTest : public PrefixTest {
 protected:
  void SetUp() override {
    create_cache({});
    first_ = begin(tokens(13), 3);
    append_rest(first_, tokens(13));
    EXPECT_OK(tables().publish(first_, 8));
    expect_whole();
  }
  /// Takes the faults away again, and proves that nothing else was wrong.
  void TearDown() override {
    for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) (*undo)();
    PrefixTest::TearDown();
  }
  template <class T>
  void plant(T& place, T value) {
    undo_.push_back([&place, before = place] { place = before; });
    place = value;
  }
  BlockId block(std::int64_t index) { return tables().lookup(first_, index).value(); }
  PrefixBlock& record(std::int64_t index) {
    return PrefixProbe::index(tables()).block(block(index));
  }
  std::int32_t* tokens_of(std::int64_t index) {
    return const_cast<std::int32_t*>(PrefixProbe::index(tables()).tokens_of(block(index)));
  }
  void expect_seen(Invariant invariant) {
    const Status seen = tables().check_invariants();
    EXPECT_EQ(seen.code, StatusCode::invariant_violated) << describe(seen);
    EXPECT_EQ(seen.native, static_cast<std::int32_t>(invariant)) << describe(seen);
  }

  SequenceId first_;
  std::vector<std::function<void()>> undo_;
};

TEST_F(PrefixFaultsTest, AWrongParentIsSeen) {
  plant(record(2).origin, record(1).origin);  // the first block in the place of the second
  EXPECT_EQ(tables().check_invariants().code, StatusCode::invariant_violated);
}

TEST_F(PrefixFaultsTest, AParentOfAnOldRegistrationIsSeenAndNotMatched) {
  EXPECT_OK(tables().publish(first_));
  EXPECT_EQ(match(tokens(13), 3).blocks, 3);
  plant(record(2).origin, record(2).origin + (std::uint64_t{1} << 32U));
  EXPECT_EQ(match(tokens(13), 3).blocks, 2);
  EXPECT_EQ(tables().check_invariants().code, StatusCode::invariant_violated);
}

TEST_F(PrefixFaultsTest, ADroppedSaltIsSeenAndNotMatched) {
  plant(record(0).origin, std::uint64_t{0});
  EXPECT_EQ(match(tokens(13), 3).blocks, 0);
  EXPECT_EQ(match(tokens(13), 0).blocks, 0) << "the hash still has the salt";
  expect_seen(Invariant::prefix_blocks);
}

TEST_F(PrefixFaultsTest, ABlockThatIsPublishedTooEarlyIsSeenAndNotMatched) {
  plant(record(2).marks, record(2).marks | PrefixBlock::kPublished);
  plant(PrefixProbe::stats(tables()).published, std::int64_t{3});
  EXPECT_EQ(match(tokens(13), 3).blocks, 2) << "the manager knows that it is being written";
  expect_seen(Invariant::prefix_blocks);
}

TEST_F(PrefixFaultsTest, ARemovalOfAReferencedBlockIsSeen) {
  PrefixProbe::remove(tables(), block(2));  // of a block that its sequence still writes
  EXPECT_EQ(tables().info(first_)->registered_blocks, 3);
  EXPECT_EQ(stats().registered, 2);
  EXPECT_OK(tables().publish(first_));
  EXPECT_EQ(stats().broken_chains, 1U) << "it counts as a broken chain, not as a hit";
  EXPECT_EQ(match(tokens(13), 3).blocks, 2);
}

TEST_F(PrefixFaultsTest, ADriftOfACountIsSeen) {
  plant(PrefixProbe::stats(tables()).published, std::int64_t{3});
  expect_seen(Invariant::prefix_counts);
  plant(PrefixProbe::stats(tables()).published, std::int64_t{2});
  expect_whole();
  plant(PrefixProbe::stats(tables()).registrations, std::uint64_t{4});
  expect_seen(Invariant::prefix_counts);
}

TEST_F(PrefixFaultsTest, OtherTokensAreSeenAndNotMatched) {
  plant(tokens_of(1)[2], 99);
  EXPECT_EQ(match(tokens(13), 3).blocks, 1);
  Tokens stale = tokens(13);
  stale[6] = 99;
  EXPECT_EQ(match(stale, 3).blocks, 2) << "tokens are compared, and the block before";
  expect_seen(Invariant::prefix_blocks);
}

TEST_F(PrefixFaultsTest, ABlockThatIsWrittenAgainIsSeen) {
  // The sequence gives the tokens of its last block back, and the index does not hear of it.
  PrefixChain& chain = PrefixProbe::chain(tables(), first_);
  const PrefixChain before = chain;
  chain.known = 0;
  EXPECT_OK(tables().truncate(first_, 10));
  chain = before;
  EXPECT_EQ(tables().check_invariants().code, StatusCode::invariant_violated);
  PrefixProbe::remove(tables(), block(2));
  chain.known = 10;
  chain.blocks = 2;
  chain.last = PrefixProbe::index(tables()).link_to(block(1));
  chain.chain = record(1).hash ^ chain.root;
}

TEST_F(PrefixFaultsTest, AnEvictableBlockThatIsNotRegisteredIsSeen) {
  EXPECT_OK(tables().destroy(first_));
  const SequenceId other = sequence(4);
  const BlockId lone = tables().lookup(other, 0).value();
  const Generation generation = manager().generation(lone);
  EXPECT_OK(manager().set_content(lone, generation, BlockContent::published));
  EXPECT_OK(tables().destroy(other));
  expect_seen(Invariant::prefix_evictable);
  EXPECT_OK(manager().set_content(lone, generation, BlockContent::unwritten));
}

TEST_F(PrefixFaultsTest, ALinkThatLeadsNowhereIsSeen) {
  plant(record(0).first_child, 0U);
  expect_seen(Invariant::prefix_counts);
}

}  // namespace
}  // namespace test
}  // namespace kvarena
