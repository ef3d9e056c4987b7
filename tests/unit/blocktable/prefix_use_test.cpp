// Histograms of a prefix cache and what its ghosts say.

#include "unit/blocktable/prefix_fixture.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace kvarena::test {
namespace {

using PrefixUseTest = PrefixTest;

TEST(PrefixHistogram, BucketsArePowersOfFour) {
  PrefixHistogram h;
  for (const std::uint64_t time : {0U, 1U, 2U, 4U, 5U, 16U, 17U}) h.add(time, 1);
  EXPECT_EQ(h.counts[0], 2U);
  EXPECT_EQ(h.counts[1], 2U);
  EXPECT_EQ(h.counts[2], 2U);
  EXPECT_EQ(h.counts[3], 1U);
  h.add(~std::uint64_t{0} >> 1, 1);
  EXPECT_EQ(h.counts[PrefixHistogram::kNumBuckets - 1], 1U);
  EXPECT_EQ(h.total(), 8U);
  h = {};
  h.add(7, 3);
  EXPECT_EQ(h.sum, 21U);
  for (std::size_t i = 0; i < PrefixHistogram::kNumBuckets; ++i) {
    PrefixHistogram at;
    at.add(PrefixHistogram::bound(i), 1);
    EXPECT_EQ(at.counts[i], 1U) << i;
    if (i + 1 == PrefixHistogram::kNumBuckets) break;
    at.add(PrefixHistogram::bound(i) + 1, 1);
    EXPECT_EQ(at.counts[i + 1], 1U) << i;
  }
}

TEST_F(PrefixUseTest, TimesAreRegistrations) {
  create_cache({.num_blocks = 4});
  EXPECT_OK(tables().destroy(computed(tokens(9))));       // registrations 1 and 2
  EXPECT_OK(tables().destroy(computed(tokens(5, 100))));  // 3
  const SequenceId found = begin(tokens(9));              // gaps 3 - 1 and 3 - 2
  PrefixUse use = tables().prefix_use();
  EXPECT_EQ(use.reuse_gap.total(), 2U);
  EXPECT_EQ(use.reuse_gap.sum, 3U);
  EXPECT_EQ(use.lifetime.total(), 0U);
  EXPECT_OK(tables().destroy(found));
  EXPECT_OK(
      tables().destroy(computed(tokens(9, 200))));  // 4 and 5: evicts what was used longest ago
  use = tables().prefix_use();
  EXPECT_EQ(use.idle.total(),
            stats().removals_by[static_cast<std::size_t>(PrefixRemoval::evicted)]);
  EXPECT_GE(use.idle.total(), 1U);
  EXPECT_EQ(use.lifetime.total(), stats().removals) << "all that went had been published";
  const SequenceId again = begin(tokens(9, 200));
  EXPECT_EQ(tables().prefix_use().reuse_gap.total(), 4U);
  EXPECT_OK(tables().destroy(again));
  EXPECT_EQ(use.ghost_references, 0U) << "no ghosts without the option";
}

// One at a time, with prompts that are never whole blocks and no outputs, the real cache is the one
// that a ghost imitates: all of its blocks are cached, or held by the only sequence.
TEST_F(PrefixUseTest, TheGhostOfThePoolFindsWhatThePoolFinds) {
  constexpr std::int64_t kBlocks = 40;
  create({.num_blocks = kBlocks, .max_holders = 64},
         {.block_size_tokens = 2,
          .max_sequences = 4,
          .prefix_cache = {.is_on = true, .hash_key = {7, 11}, .ghost_blocks = 1024}});
  std::mt19937_64 random(5);
  for (int round = 0; round < 3000; ++round) {
    // A few popular beginnings and many endings.
    const auto chat = static_cast<std::int32_t>(random() % 12);
    Tokens list(static_cast<std::size_t>(9 + 2 * (random() % 6)), chat);
    list[4] = static_cast<std::int32_t>(random() % 4);
    EXPECT_OK(tables().destroy(computed(list)));
  }
  const PrefixUse use = tables().prefix_use();
  const PrefixStats seen = stats();
  const auto references = static_cast<double>(use.ghost_references);
  EXPECT_EQ(use.ghost_sampled_ppm, 1'000'000);
  // The last, partial block of a prompt needs a block too, so the pool is one smaller.
  const double rate = static_cast<double>(seen.hit_blocks) / references;
  const auto& tail_first = use.ghost_hits_ppm[0];
  EXPECT_NEAR(static_cast<double>(tail_first[1]) / 1e6, rate, 0.03);
  EXPECT_LT(tail_first[0], tail_first[1]) << "half the pool finds less";
  EXPECT_LE(tail_first[1], tail_first[2]);
  EXPECT_LE(tail_first[2], tail_first[3]);
  for (const auto& of_policy : use.ghost_hits_ppm) EXPECT_GT(of_policy[1], 0);
}

TEST_F(PrefixUseTest, WrongOptionsAreRefused) {
  create_cache({});
  BlockTablesOptions options{.block_size_tokens = 4, .max_sequences = 4};
  options.prefix_cache = {.is_on = true, .ghost_blocks = 3};
  EXPECT_EQ(BlockTables::create(manager(), options).status().option, Option::ghost_blocks);
  options.prefix_cache = {.is_on = true, .max_accounts = -1};
  EXPECT_EQ(BlockTables::create(manager(), options).status().option, Option::max_accounts);
}

}  // namespace
}  // namespace kvarena::test
