// What the host tells the kernels of a step's rows. Needs no GPU: no address is read.

#include "attention/cuda/cuda_step.hpp"

#include "kernels/decode/decode_shape.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace kvarena {
namespace {

TEST(CudaStep, RowsAreCountedByClass) {
  const std::int32_t tokens[] = {1, 0, 2, 3, 33, 32, 1, 500};
  const cuda::RowCounts counts = cuda::count_rows({2, 32}, tokens);
  EXPECT_EQ(counts.decode, 3);
  EXPECT_EQ(counts.columns, 2);
  EXPECT_EQ(counts.prompts, 2) << "a row without query tokens is none";
  EXPECT_EQ(counts.decode_length, 0) << "unknown";
  const std::int32_t lengths[] = {10, 900, 70, 900, 900, 900, 5, 900};
  const cuda::RowCounts known = cuda::count_rows({2, 32}, tokens, lengths);
  EXPECT_EQ(known.decode_length, 85);
  EXPECT_EQ(known.decode_longest, 70);
}

// Decode attention of many short rows has another launch, which needs to know of them.
TEST(CudaStep, DecodeIsToldOfTheLengthsThatItsRowsRead) {
  cuda::AttentionStep step;
  PlaneView& key = step.shape.kv.key;
  key.num_heads = 2;
  key.head_dim = 64;
  key.dtype = DType::bf16;
  key.tile_order = TileOrder::chunked;
  step.shape.kv.value = key;
  step.shape.kv.block_size = 16;
  step.shape.num_q_heads = 8;
  step.shape.max_rows = 4;
  step.shape.max_decode_tokens = 2;
  step.shape.num_sms = 132;
  step.rows = {.decode = 3, .decode_tokens = 2, .decode_length = 1000, .decode_longest = 700};
  const auto limits = [&](std::int32_t window) { return cuda::plan_step(step, 4, window).decode; };
  EXPECT_EQ(limits(0).step_tokens, 2);
  EXPECT_EQ(limits(0).step_rows, 3);
  EXPECT_EQ(limits(0).step_row_tokens, 334);
  EXPECT_EQ(limits(0).step_longest, 700);
  EXPECT_EQ(limits(100).step_row_tokens, 101) << "both query tokens see 100";
  EXPECT_EQ(limits(100).step_longest, 101);
  EXPECT_EQ(limits(500).step_row_tokens, 334);
  EXPECT_EQ(limits(500).step_longest, 501);
  step.rows.decode_longest = -1;
  EXPECT_EQ(limits(0).step_longest, 334) << "not less than the mean";
  step.rows.decode_length = step.rows.decode_longest = 0;
  EXPECT_EQ(limits(0).step_rows, 0) << "unknown";
  EXPECT_EQ(limits(100).step_rows, 3);
  EXPECT_EQ(limits(100).step_row_tokens, 101) << "not more than the window";
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(limits(kMost).step_longest, kMost);
  EXPECT_EQ(limits(kMost).step_row_tokens, kMost);
  step.rows.decode_length = std::int64_t{3} * kMost;
  step.rows.decode_longest = kMost;
  EXPECT_EQ(limits(0).step_row_tokens, kMost);
  EXPECT_EQ(kernels::decode_shape(limits(0)), kernels::usual_shape(limits(0)));
  step.rows.decode = 0;
  EXPECT_EQ(limits(100).step_rows, 0);
}

}  // namespace
}  // namespace kvarena
