// When a step looks for rows that begin with the same blocks: of real tables, by what they share.

#include "cache/sharing_gain.hpp"
#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace kvarena {
namespace {

/// A step of rows with `shared` tokens of a common parent, then rows of their own.
struct Step {
  std::int32_t sharers;
  std::int32_t shared;  ///< tokens that the sharers have in common, a multiple of a block
  std::int32_t alone;   ///< further tokens of each sharer
  std::int32_t others;  ///< rows that share nothing
  std::int32_t tokens;  ///< of each of them
};

bool looks_for_prefixes(const Step& step, DType dtype, std::int32_t block_size = 16) {
  auto manager = BlockManager::create({.num_blocks = 20'000}).value();
  auto tables =
      BlockTables::create(
          manager, {.block_size_tokens = block_size, .max_sequences = 200, .report_rows = true})
          .value();
  std::vector<AppendDemand> demands;
  const SequenceId parent = tables.create_sequence().value();
  const AppendDemand prefix{parent, step.shared};
  EXPECT_OK(tables.append({&prefix, 1}));
  for (std::int32_t i = 0; i < step.sharers; ++i) {
    demands.push_back({tables.fork(parent, step.shared).value(), step.alone});
  }
  for (std::int32_t i = 0; i < step.others; ++i) {
    demands.push_back({tables.create_sequence().value(), step.tokens});
  }
  const Result<AppendResult> grown = tables.append(demands);
  EXPECT_OK(grown);
  KvLayerView kv;
  kv.key.dtype = dtype;
  kv.block_size = block_size;
  const SharingThreshold gain = sharing_threshold(grown->rows, kv);
  return tables.most_sharers(grown->rows, gain.block) >= gain.sharers;
}

TEST(SharingGain, EightRowsWith512TokensOf16Bits) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    EXPECT_TRUE(looks_for_prefixes({8, 512, 1, 0, 0}, dtype));
    EXPECT_TRUE(looks_for_prefixes({8, 512, 1, 40, 3'000}, dtype)) << "whatever runs beside them";
    EXPECT_FALSE(looks_for_prefixes({7, 512, 1, 0, 0}, dtype));
    EXPECT_FALSE(looks_for_prefixes({8, 496, 1, 0, 0}, dtype));
    EXPECT_FALSE(looks_for_prefixes({0, 512, 0, 8, 600}, dtype)) << "equal lengths, other blocks";
  }
}

TEST(SharingGain, OverFp8HalfOfTheRowsShareHalfOfTheMeanLength) {
  constexpr DType kFp8 = DType::fp8_e4m3;
  EXPECT_TRUE(looks_for_prefixes({8, 512, 16, 0, 0}, kFp8));
  EXPECT_TRUE(looks_for_prefixes({20, 2'048, 16, 20, 2'000}, kFp8));
  EXPECT_FALSE(looks_for_prefixes({19, 2'048, 16, 21, 2'000}, kFp8)) << "fewer than half";
  EXPECT_TRUE(looks_for_prefixes({20, 512, 512, 0, 0}, kFp8)) << "half of each row";
  EXPECT_FALSE(looks_for_prefixes({20, 512, 600, 0, 0}, kFp8)) << "less than half of each";
  EXPECT_FALSE(looks_for_prefixes({20, 512, 16, 20, 3'000}, kFp8)) << "less than half of the mean";
  EXPECT_FALSE(looks_for_prefixes({7, 2'048, 16, 0, 0}, kFp8)) << "of all rows, but fewer than 8";
  EXPECT_FALSE(looks_for_prefixes({8, 256, 16, 0, 0}, kFp8)) << "half, but less than 512";
}

TEST(SharingGain, BlocksLongerThanTheShortestBeginning) {
  EXPECT_TRUE(looks_for_prefixes({8, 1'024, 1, 0, 0}, DType::bf16, 1'024));
  EXPECT_FALSE(looks_for_prefixes({7, 1'024, 1, 0, 0}, DType::bf16, 1'024));
}

TEST(SharingGain, AStepWithoutRowsHasNothingToShare) {
  EXPECT_FALSE(looks_for_prefixes({0, 512, 0, 0, 0}, DType::fp8_e4m3));
  EXPECT_FALSE(looks_for_prefixes({0, 512, 0, 0, 0}, DType::bf16));
}

}  // namespace
}  // namespace kvarena
