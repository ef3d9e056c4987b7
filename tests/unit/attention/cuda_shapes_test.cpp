// Sizes of a decode workspace, on machines without CUDA too.

#include "attention/cuda/cuda_shapes.hpp"
#include "kvarena/base/latent_fp8.hpp"

#include "kernels/columns/columns_workspace.h"
#include "kernels/prefill/prefill_plan.h"
#include "support/process_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvarena {
namespace {

std::byte* address(std::uintptr_t value) { return reinterpret_cast<std::byte*>(value); }

cuda::AttentionShape shape_of(std::int32_t heads, std::int32_t dim, std::int32_t num_sms) {
  cuda::AttentionShape shape{.kv = {},
                             .num_q_heads = 4 * heads,
                             .max_rows = 1,
                             .max_decode_tokens = 2,
                             .num_sms = num_sms};
  const std::int64_t head_bytes = std::int64_t{16} * dim * 2;
  shape.kv.key = {
      address(1 << 20), 2 * heads * head_bytes, head_bytes, std::int64_t{dim} * 2, heads, dim,
      DType::bf16,      TileOrder::chunked};
  shape.kv.value = shape.kv.key;
  shape.kv.value.base += heads * head_bytes;
  shape.kv.block_size = 16;
  shape.kv.num_blocks = 50;
  return shape;
}

// The rows that are left out never need more than those that are looked at.
TEST(CudaShapes, EnumeratorsThatAreNoneAreRefused) {
  cuda::AttentionShape shape = shape_of(2, 128, 132);
  shape.kv.key.dtype = static_cast<DType>(99);
  EXPECT_EQ(cuda::workspace_bytes(shape).status(), invalid_argument(Resource::dtype, 99, 0, 5));
  shape = shape_of(2, 128, 132);
  shape.kv.value.tile_order = static_cast<TileOrder>(99);
  EXPECT_EQ(cuda::workspace_bytes(shape).status(),
            invalid_argument(Resource::tile_order, 99, 0, 1));
}

TEST(CudaShapes, AWorkspaceServesEveryNumberOfRows) {
  const std::int32_t longest = test::kSanitized ? 150 : 600;
  for (const std::int32_t heads : {1, 2, 8, 32}) {
    for (const std::int32_t dim : {64, 96, 128, 256}) {
      for (const std::int32_t num_sms : {1, 58, 132}) {
        cuda::AttentionShape shape = shape_of(heads, dim, num_sms);
        ASSERT_TRUE(cuda::takes_decode(shape.kv, shape.num_q_heads));
        std::int64_t most = 0;
        for (; shape.max_rows <= longest; ++shape.max_rows) {
          most = std::max(most, cuda::rows_bytes(shape, shape.max_rows));
          const std::int64_t prompts =
              kernels::kPrefillCounterBytes + kernels::prefill_plan_bytes(shape.max_rows);
          ASSERT_EQ(cuda::workspace_bytes(shape).value(), prompts + most)
              << heads << " heads of " << dim << ", " << num_sms << " SMs, " << shape.max_rows
              << " rows";
        }
      }
    }
  }
}

/// A layer of latents of 576 elements, for `heads` query heads.
cuda::AttentionShape latents(std::int32_t heads) {
  cuda::AttentionShape shape = shape_of(1, 576, 132);
  shape.num_q_heads = heads;
  shape.max_rows = 100;
  shape.compute_capability = 90;
  shape.kv.value = shape.kv.key;
  shape.kv.value.head_dim = 512;
  return shape;
}

TEST(CudaShapes, LatentsHaveAKernel) {
  for (const std::int32_t heads : {1, 16, 20, 64, 128}) {
    const cuda::AttentionShape shape = latents(heads);
    EXPECT_TRUE(cuda::takes_columns(shape)) << heads;
    EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{0, 64})) << heads;
    // What any number of query tokens needs fits.
    const std::int64_t bytes = cuda::workspace_bytes(shape).value();
    for (std::int32_t tokens = 1; tokens <= 64; ++tokens) {
      const kernels::ColumnsLimits limits = cuda::columns_limits(shape, 100, tokens, true);
      EXPECT_GE(limits.q_len, tokens);
      EXPECT_GT(kernels::columns_workspace_bytes(limits), 0);
      EXPECT_LT(kernels::columns_workspace_bytes(limits), bytes) << heads << " x " << tokens;
    }
  }
}

/// The same in another type.
cuda::AttentionShape latents_of(DType dtype, std::int32_t heads) {
  cuda::AttentionShape shape = latents(heads);
  for (PlaneView* plane : {&shape.kv.key, &shape.kv.value}) {
    plane->dtype = dtype;
    plane->token_stride = row_bytes(dtype, 576);
    plane->head_stride = plane->block_stride = 16 * plane->token_stride;
    if (dtype == DType::latent_fp8) plane->tile_order = TileOrder::rows;
  }
  return shape;
}

TEST(CudaShapes, LatentsInEightBitsHaveAKernel) {
  for (const DType dtype : {DType::fp8_e4m3, DType::latent_fp8}) {
    for (const std::int32_t heads : {1, 16, 64, 128}) {
      cuda::AttentionShape shape = latents_of(dtype, heads);
      EXPECT_TRUE(cuda::takes_columns(shape)) << name_of(dtype) << ", " << heads;
      EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{0, 64})) << name_of(dtype);
      const std::int64_t bytes = cuda::workspace_bytes(shape).value();
      for (std::int32_t tokens = 1; tokens <= 64; ++tokens) {
        const kernels::ColumnsLimits limits = cuda::columns_limits(shape, 100, tokens, false);
        EXPECT_LT(kernels::columns_workspace_bytes(limits), bytes) << heads << " x " << tokens;
      }
      shape.batch_invariant_tokens = 1 << 16;
      const kernels::ColumnsLimits limits = cuda::columns_limits(shape, 100, 4, false);
      EXPECT_LE(kernels::columns_shape(limits).columns, 32) << "the kinds that have the same bits";
    }
  }
  cuda::AttentionShape shape = latents_of(DType::latent_fp8, 16);
  shape.kv.value.token_stride = 512;
  EXPECT_FALSE(cuda::takes_columns(shape)) << "V that is not in K";
  shape = latents_of(DType::latent_fp8, 16);
  shape.kv.block_size = 8;
  EXPECT_FALSE(cuda::takes_columns(shape)) << "half a tile";
}

TEST(CudaShapes, ValuesOfFewerDimsHaveAKernel) {
  cuda::AttentionShape shape = shape_of(4, 192, 132);
  shape.num_q_heads = 64;
  shape.max_rows = 100;
  shape.compute_capability = 90;
  shape.kv.value.head_dim = 128;
  shape.kv.value.token_stride = 256;
  shape.kv.value.head_stride = 16 * 256;
  EXPECT_TRUE(cuda::takes_columns(shape));
  EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{0, 8})) << "128 columns";
  shape.max_run_tokens = 4096;
  EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{0, kernels::kMaxRunsTokens}));
  EXPECT_EQ(cuda::columns_limits(shape, 100, 8, false).max_rows, 100);
  EXPECT_EQ(cuda::columns_limits(shape, 100, 4096, false).max_rows, 100 + 4096 / 64);
  const std::int64_t bytes = cuda::workspace_bytes(shape).value();
  for (const std::int32_t tokens : {1, 4, 8, 9, 64, 4096}) {
    const kernels::ColumnsLimits limits = cuda::columns_limits(shape, 100, tokens, true);
    EXPECT_EQ(limits.shared_rows, 0) << "they share no prefixes";
    EXPECT_GE(limits.q_len, std::min(tokens, 64));
    EXPECT_LT(kernels::columns_workspace_bytes(limits), bytes) << tokens;
  }
  shape.batch_invariant_tokens = 1000;
  EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{0, 4})) << "one launch shape";
  shape.batch_invariant_tokens = 0;
  shape.num_q_heads = 4 * 20;
  EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{0, 6})) << "too many columns for runs";
  shape.kv.value.head_dim = 64;
  EXPECT_FALSE(cuda::takes_columns(shape)) << "other dims";
}

TEST(CudaShapes, LongRowsOfLatentsAreSeveralRows) {
  cuda::AttentionShape shape = latents(16);
  shape.max_run_tokens = 8192;
  EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{0, kernels::kMaxRunsTokens}));
  EXPECT_EQ(cuda::columns_limits(shape, 100, 1, false).max_rows, 100) << "one token a row";
  EXPECT_EQ(cuda::columns_limits(shape, 100, 8192, false).max_rows, 100 + 8192 / 64);
  shape.max_run_tokens = 1 << 20;
  EXPECT_EQ(cuda::columns_limits(shape, 100, 8192, false).max_rows, kernels::kMaxColumnsRows);
  shape.batch_invariant_tokens = 1000;
  EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{0, 64})) << "a step may have more runs";
  shape.max_run_tokens = 8192;
  EXPECT_EQ(cuda::row_classes(shape), (cuda::RowClasses{0, kernels::kMaxRunsTokens}));
  shape.max_run_tokens = -1;
  EXPECT_EQ(cuda::workspace_bytes(shape).status().option, Option::max_step_tokens);
}

TEST(CudaShapes, OtherLatentsHaveNone) {
  cuda::AttentionShape shape = latents(129);
  EXPECT_FALSE(cuda::takes_columns(shape)) << "too many heads";
  shape = latents(16);
  shape.compute_capability = 80;
  EXPECT_EQ(cuda::row_classes(shape), cuda::RowClasses{}) << "another GPU";
  for (PlaneView* plane : {&shape.kv.key, &shape.kv.value}) plane->dtype = DType::f16;
  EXPECT_FALSE(cuda::takes_columns(shape)) << "f16";
  shape = latents(16);
  shape.kv.value.base += 16;
  EXPECT_FALSE(cuda::takes_columns(shape)) << "V that is not in K";
  shape = latents(16);
  shape.kv.value.token_stride = 1024;
  EXPECT_FALSE(cuda::takes_columns(shape)) << "V in the order of rows of 512 elements";
  shape = latents(16);
  shape.kv.key.tile_order = shape.kv.value.tile_order = TileOrder::rows;
  EXPECT_FALSE(cuda::takes_columns(shape)) << "rows";
}

TEST(CudaShapes, PromptsOfEveryChunkedDimHaveAPlan) {
  cuda::AttentionShape shape = shape_of(2, 80, 132);
  shape.max_rows = 300;
  const std::int64_t prompts = kernels::kPrefillCounterBytes + kernels::prefill_plan_bytes(300);
  const std::int64_t columns =
      std::max(kernels::columns_workspace_bytes(cuda::columns_limits(shape, 300, 1, false)),
               kernels::columns_workspace_bytes(cuda::columns_limits(shape, 300, 128, false)));
  EXPECT_EQ(cuda::workspace_bytes(shape).value(), prompts + columns)
      << "decode attention does not take it";
  shape.compute_capability = 90;
  EXPECT_EQ(cuda::workspace_bytes(shape).value(), prompts + columns) << "the same on every GPU";
  shape.kv.value.head_dim = 64;
  EXPECT_EQ(cuda::workspace_bytes(shape).value(), 0);
}

// Tokens of 80 bytes have no chunked order.
TEST(CudaShapes, PromptsOfFp8WithoutAChunkedOrderHaveAPlan) {
  cuda::AttentionShape shape = shape_of(2, 80, 132);
  shape.max_rows = 300;
  for (PlaneView* plane : {&shape.kv.key, &shape.kv.value}) {
    plane->dtype = DType::fp8_e4m3;
    plane->tile_order = TileOrder::rows;
    plane->token_stride = 80;
  }
  EXPECT_FALSE(cuda::takes_columns(shape));
  EXPECT_EQ(cuda::workspace_bytes(shape).value(),
            kernels::kPrefillCounterBytes + kernels::prefill_plan_bytes(300));
  shape.kv.key.token_stride = shape.kv.value.token_stride = 96;
  EXPECT_EQ(cuda::workspace_bytes(shape).value(), 0) << "bytes between tokens";
}

}  // namespace
}  // namespace kvarena
