// Sizes of a decode workspace, on machines without CUDA too.

#include "attention/cuda/cuda_shapes.hpp"

#include "kernels/columns/columns_workspace.h"
#include "kernels/prefill/prefill_plan.h"

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
  EXPECT_EQ(cuda::workspace_bytes(shape).status(), invalid_argument(Resource::dtype, 99, 0, 4));
  shape = shape_of(2, 128, 132);
  shape.kv.value.tile_order = static_cast<TileOrder>(99);
  EXPECT_EQ(cuda::workspace_bytes(shape).status(),
            invalid_argument(Resource::tile_order, 99, 0, 1));
}

TEST(CudaShapes, AWorkspaceServesEveryNumberOfRows) {
  for (const std::int32_t heads : {1, 2, 8, 32}) {
    for (const std::int32_t dim : {64, 96, 128, 256}) {
      for (const std::int32_t num_sms : {1, 58, 132}) {
        cuda::AttentionShape shape = shape_of(heads, dim, num_sms);
        ASSERT_TRUE(cuda::takes_decode(shape.kv, shape.num_q_heads));
        std::int64_t most = 0;
        for (; shape.max_rows <= 600; ++shape.max_rows) {
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
  shape.kv.value.head_dim = 96;
  EXPECT_EQ(cuda::workspace_bytes(shape).value(), 0);
}

}  // namespace
}  // namespace kvarena
