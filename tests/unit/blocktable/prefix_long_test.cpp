// Long prefixes, whose blocks lie one behind the other, backwards, anywhere, or first the one and
// then the other: the search goes from block to block or by hashes, and finds the same.

#include "unit/blocktable/prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

namespace kvarena::test {
namespace {

constexpr std::int32_t kBlock = 4;
constexpr std::int32_t kBlocks = 150;
constexpr std::int64_t kPool = 1024;

class PrefixLongTest : public PrefixTest {
 protected:
  PrefixLongTest() { create_cache({.num_blocks = kPool, .block_size = kBlock}); }

  /// Takes all free blocks one by one and gives them back in this order, so that later ones come in
  /// the opposite order.
  void order_free_blocks(const std::vector<std::size_t>& order) {
    const HolderId holder = manager().register_holder({}).value();
    const auto count = static_cast<std::size_t>(manager().stats().free);
    std::vector<BlockId> blocks(count);
    std::vector<Generation> generations(count);
    EXPECT_OK(manager().allocate(holder, blocks, generations));
    for (const std::size_t i : order) {
      if (i >= count) continue;
      const std::span<const BlockId> id(&blocks[i], 1);
      EXPECT_OK(manager().release(holder, id, std::span(&generations[i], 1)));
    }
    EXPECT_OK(manager().unregister_holder(holder));
  }
  static std::vector<std::size_t> counted() {
    std::vector<std::size_t> order(static_cast<std::size_t>(kPool));
    std::iota(order.begin(), order.end(), 0U);
    return order;
  }

  /// Two prompts that part at block kBlocks / 2, with extra keys now and then, and what is found of
  /// them: by tokens up to each length, it is what their tables have.
  void expect_all_found() {
    const Tokens list = tokens(kBlocks * kBlock + 1);
    const std::vector<ExtraKey> keys{{7, 5 * kBlock + 1}, {9, 90 * kBlock}};
    Tokens other = list;
    other[static_cast<std::size_t>(kBlocks / 2 * kBlock)] = -1;
    const Numbers its = blocks(computed(list, 3, keys));
    const Numbers others = blocks(computed(other, 3, keys));
    for (const auto& [asked, expected] :
         {std::pair<const Tokens*, const Numbers*>{&list, &its}, {&other, &others}}) {
      for (std::int32_t n = 1; n <= kBlocks; ++n) {
        const Tokens part(asked->begin(), asked->begin() + n * kBlock + 1);
        std::vector<ExtraKey> known;
        std::ranges::copy_if(keys, std::back_inserter(known), [&](const ExtraKey& key) {
          return key.first_token < std::ssize(part);
        });
        const SequenceId id = begin(part, 3, known);
        ASSERT_EQ(tables().prefix_of(id)->blocks, n);
        ASSERT_EQ(blocks(id), Numbers(expected->begin(), expected->begin() + n));
        EXPECT_OK(tables().destroy(id));
      }
      Tokens longer = *asked;
      longer[100 * kBlock] = -2;
      const PrefixMatch found = match(longer, 3, keys);
      EXPECT_EQ(found.blocks, 100);
      EXPECT_EQ(found.stop, PrefixStop::never_seen);
      EXPECT_EQ(match(*asked, 4, keys).blocks, 0);
      const std::vector<ExtraKey> none;
      EXPECT_EQ(match(*asked, 3, none).blocks, 5);
    }
    expect_whole();
  }
};

TEST_F(PrefixLongTest, BlocksLieOneBehindTheOther) { expect_all_found(); }

TEST_F(PrefixLongTest, BlocksLieBackwards) {
  order_free_blocks(counted());
  expect_all_found();
}

TEST_F(PrefixLongTest, BlocksLieAnywhere) {
  std::vector<std::size_t> order = counted();
  std::shuffle(order.begin(), order.end(), std::mt19937_64(5));
  order_free_blocks(order);
  expect_all_found();
}

TEST_F(PrefixLongTest, BlocksLieInRuns) {
  std::mt19937_64 random(6);
  for (const std::size_t longest : {3U, 20U, 60U}) {
    std::vector<std::size_t> order;
    for (std::size_t first = 0; first < static_cast<std::size_t>(kPool);) {
      const std::size_t count = 1 + random() % longest;
      for (std::size_t i = 0; i < count; ++i) order.push_back(first + i);
      if (random() % 2 == 0) std::reverse(order.end() - static_cast<int>(count), order.end());
      if (random() % 4 == 0)
        std::shuffle(order.end() - static_cast<int>(count), order.end(), random);
      first += count;
    }
    create_cache({.num_blocks = kPool, .block_size = kBlock});
    order_free_blocks(order);
    expect_all_found();
  }
}

/// A cached block that was taken and that nobody has noticed ends the walk.
TEST_F(PrefixLongTest, AHitEndsBeforeABlockThatIsNotPublished) {
  const Tokens list = tokens(40 * kBlock + 1);
  const SequenceId id = begin(list);
  append_rest(id, list);
  EXPECT_OK(tables().publish(id, 30 * kBlock));
  const PrefixMatch found = match(list);
  EXPECT_EQ(found.blocks, 30);
  EXPECT_EQ(found.stop, PrefixStop::not_yet_published);
  EXPECT_EQ(found.pending_block.value, blocks(id)[30]);
}

}  // namespace
}  // namespace kvarena::test
