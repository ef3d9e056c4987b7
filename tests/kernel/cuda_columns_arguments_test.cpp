// What the launchers of attention with many query columns refuse. Nothing is launched, so that
// these tests need no GPU; pointers are the host's.

#include "kernels/columns/columns.h"
#include "kernels/columns/columns_workspace.h"
#include "kernels/columns/shared_prefixes.h"
#include "support/status_matchers.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvarena::test {
namespace {

using kernels::ColumnsLimits;
using kernels::ColumnsParams;
using kernels::ColumnsScheduleParams;
using kernels::launch_columns;
using kernels::launch_columns_schedule;

ColumnsLimits small_limits() {
  return {.max_rows = 4,
          .q_len = 8,
          .num_q_heads = 8,
          .num_kv_heads = 2,
          .head_dim = 128,
          .num_sms = 4};
}

// The same limits by the same names from both launches and from the size of a workspace.
TEST(CudaColumnsArguments, OfLimitsNameWhatIsWrong) {
  EXPECT_GT(kernels::columns_workspace_bytes(small_limits()), 0);
  const auto fails = [&](auto change, StatusCode code, Resource resource) {
    ColumnsLimits limits = small_limits();
    change(limits);
    ColumnsScheduleParams schedule;
    schedule.limits = limits;
    ColumnsParams params;
    params.limits = limits;
    EXPECT_EQ(kernels::columns_workspace_bytes(limits), 0) << name_of(resource);
    EXPECT_TRUE(fails_with(launch_columns_schedule(schedule, nullptr), code, resource));
    EXPECT_TRUE(fails_with(launch_columns(params, false, nullptr), code, resource));
  };
  using L = ColumnsLimits&;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  for (const std::int32_t rows : {0, -1, (1 << 14) + 1}) {
    fails([=](L l) { l.max_rows = rows; }, kInvalid, Resource::num_sequences);
  }
  for (const std::int32_t tokens : {0, -1, 65}) {
    fails([=](L l) { l.q_len = tokens; }, kInvalid, Resource::num_tokens);
  }
  for (const std::int32_t heads : {0, -1, 4097}) {
    fails([=](L l) { l.num_kv_heads = l.num_q_heads = heads; }, kInvalid, Resource::num_kv_heads);
  }
  for (const std::int32_t heads : {1, 3, 258}) {
    fails([=](L l) { l.num_q_heads = heads; }, kInvalid, Resource::num_q_heads);
  }
  for (const std::int32_t sms : {0, 257}) {
    fails([=](L l) { l.num_sms = sms; }, kInvalid, Resource::device);
  }
  fails([](L l) { l.fixed_tokens = -1; }, kInvalid, Resource::num_tokens);
  fails([](L l) { l.head_dim = 72; }, kUnsupported, Resource::head_dim);
  for (const DType dtype : {DType::f32, DType::int8, DType::latent_fp8}) {
    fails([=](L l) { l.kv_dtype = dtype; }, kUnsupported, Resource::dtype);
  }
  const auto fp8 = [](L l) { l.kv_dtype = DType::fp8_e4m3; };
  fails([=](L l) { fp8(l), l.head_dim = 80; }, kUnsupported, Resource::head_dim);
  fails([=](L l) { fp8(l), l.head_dim = 192, l.value_dim = 128; }, kUnsupported, Resource::dtype);
}

// Partial results: two a thread block, or a slot for each fixed part.
TEST(CudaColumnsArguments, AWorkspaceGrowsWithItsFixedParts) {
  ColumnsLimits limits = small_limits();
  const kernels::ColumnsWorkspace even = kernels::columns_workspace(limits);
  EXPECT_EQ(even.blocks, 8);
  EXPECT_EQ(even.max_slots, 16);
  limits.fixed_tokens = 100000;
  const kernels::ColumnsWorkspace fixed = kernels::columns_workspace(limits);
  const std::int64_t part = kernels::fixed_part_slabs(kernels::columns_shape(limits)) * 64;
  EXPECT_EQ(part, 2048);
  EXPECT_EQ(fixed.max_slots, (100000 / part + 4) * 2);
  EXPECT_GT(fixed.bytes, even.bytes);
}

TEST(CudaColumnsArguments, OfSharedRowsNameWhatIsWrong) {
  ColumnsLimits limits = small_limits();
  EXPECT_EQ(kernels::shared_prefixes_bytes(limits), 0);
  const std::int64_t alone = kernels::columns_workspace_bytes(limits);
  limits.shared_rows = 4;
  EXPECT_GT(kernels::shared_prefixes_bytes(limits), 0);
  EXPECT_GT(kernels::columns_workspace_bytes(limits), alone);
  for (const DType dtype : {DType::bf16, DType::fp8_e4m3}) {
    for (const std::int32_t head_dim : {64, 80, 96, 128, 192, 256}) {
      ColumnsLimits its = limits;
      its.kv_dtype = dtype;
      its.head_dim = head_dim;
      EXPECT_EQ(kernels::columns_shape(its).columns, head_dim <= 128 ? 64 : 128);
      EXPECT_TRUE(kernels::serves_prefixes(head_dim, kernels::columns_kind(its)));
    }
  }
  for (const std::int32_t rows : {-1, 5}) {
    limits.shared_rows = rows;
    EXPECT_EQ(kernels::columns_workspace_bytes(limits), 0);
  }
  alignas(256) static std::byte memory[512];
  const auto fails = [&](auto change, StatusCode code, Resource resource) {
    kernels::FindPrefixesParams p;
    p.limits = small_limits();
    p.limits.shared_rows = 4;
    p.num_rows = 1;
    p.seq_lens = p.shared_tokens = reinterpret_cast<std::int32_t*>(memory);
    p.block_tables = reinterpret_cast<const BlockId*>(memory);
    p.prefixes = memory;
    p.prefixes_bytes = kernels::shared_prefixes_bytes(p.limits);
    change(p);
    EXPECT_TRUE(fails_with(kernels::launch_find_prefixes(p, nullptr), code, resource));
  };
  using P = kernels::FindPrefixesParams&;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  fails([](P p) { p.limits.shared_rows = 0; }, kInvalid, Resource::num_sequences);
  fails([](P p) { p.num_rows = -1; }, kInvalid, Resource::num_sequences);
  fails([](P p) { p.window_tokens = -1; }, kInvalid, Resource::window);
  fails([](P p) { p.own_sixteenths = -1; }, kInvalid, Resource::num_tokens);
  fails([](P p) { p.own_sixteenths = 17; }, kInvalid, Resource::num_tokens);
  fails([](P p) { p.block_size = 24; }, StatusCode::unsupported, Resource::block_size);
  fails([](P p) { p.seq_lens = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.block_tables = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.shared_tokens = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.prefixes = memory + 128; }, kInvalid, Resource::alignment);
  fails([](P p) { --p.prefixes_bytes; }, StatusCode::limit_exceeded, Resource::workspace);
}

TEST(CudaColumnsArguments, OfASchedule) {
  alignas(256) static std::byte memory[512];
  const auto fails = [&](auto change, Resource resource) {
    ColumnsScheduleParams p;
    p.limits = small_limits();
    p.workspace = memory;
    p.workspace_bytes = kernels::columns_workspace_bytes(p.limits);
    change(p);
    EXPECT_TRUE(
        fails_with(launch_columns_schedule(p, nullptr), StatusCode::invalid_argument, resource));
  };
  using P = ColumnsScheduleParams&;
  fails([](P p) { p.min_q_len = 0; }, Resource::num_tokens);
  fails([](P p) { p.min_q_len = 9; }, Resource::num_tokens);
  fails([](P p) { p.num_rows = -1; }, Resource::num_sequences);
  fails([](P p) { p.num_rows = 1; }, Resource::pointer);
  fails([](P p) { p.prefixes = memory; }, Resource::pointer);
}

TEST(CudaColumnsArguments, OfPointersAndNumbersNameWhatIsWrong) {
  alignas(256) static std::byte memory[512];
  const auto fails = [&](auto change, StatusCode code, Resource resource) {
    ColumnsParams p;
    p.limits = small_limits();
    p.q = p.key = p.value = p.out = p.workspace = memory;
    p.block_tables = reinterpret_cast<const BlockId*>(memory);
    p.num_rows = 1;
    p.workspace_bytes = kernels::columns_workspace_bytes(p.limits);
    change(p);
    EXPECT_TRUE(fails_with(launch_columns(p, false, nullptr), code, resource));
  };
  using P = ColumnsParams&;
  constexpr auto kInvalid = StatusCode::invalid_argument;
  constexpr auto kUnsupported = StatusCode::unsupported;
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  fails([](P p) { p.q = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.out = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.key = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.value = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.block_tables = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.workspace = nullptr; }, kInvalid, Resource::pointer);
  fails([](P p) { p.q = memory + 8; }, kInvalid, Resource::alignment);
  fails([](P p) { p.out = memory + 8; }, kInvalid, Resource::alignment);
  fails([](P p) { p.lse = reinterpret_cast<float*>(memory + 2); }, kInvalid, Resource::alignment);
  fails([](P p) { p.tree_mask = reinterpret_cast<const std::uint64_t*>(memory + 4); }, kInvalid,
        Resource::alignment);
  fails([](P p) { p.head_stride = 24; }, kInvalid, Resource::alignment);
  fails([](P p) { p.q_token_stride = (1 << 20) + 8; }, kInvalid, Resource::alignment);
  fails([](P p) { p.out_token_stride = (1 << 20) + 8; }, kInvalid, Resource::alignment);
  fails([](P p) { p.q_token_stride = 16; }, kInvalid, Resource::span_size);
  fails([](P p) { p.out_token_stride = -16; }, kInvalid, Resource::span_size);
  fails([](P p) { p.workspace = memory + 128; }, kInvalid, Resource::alignment);
  fails([](P p) { p.num_rows = -1; }, kInvalid, Resource::num_sequences);
  fails([](P p) { p.scale = 0.0F; }, kInvalid, Resource::scale);
  fails([=](P p) { p.scale = kNaN; }, kInvalid, Resource::scale);
  fails([](P p) { p.soft_cap = -1.0F; }, kInvalid, Resource::soft_cap);
  fails([](P p) { p.window_tokens = -1; }, kInvalid, Resource::window);
  fails([](P p) { p.block_size = 24; }, kUnsupported, Resource::block_size);
  fails([](P p) { p.dtype = DType::f16; }, kUnsupported, Resource::dtype);
  for (const DType dtype : {DType::f32, DType::fp8_e4m3}) {
    fails([=](P p) { p.limits.kv_dtype = DType::fp8_e4m3, p.dtype = dtype; }, kUnsupported,
          Resource::dtype);
  }
  fails([](P p) { p.scales.key = reinterpret_cast<const float*>(memory + 2); }, kInvalid,
        Resource::alignment);
  fails([](P p) { --p.workspace_bytes; }, StatusCode::limit_exceeded, Resource::workspace);
  fails(
      [](P p) {
        p.tree_mask = reinterpret_cast<const std::uint64_t*>(memory);
        p.soft_cap = 1.0F;
      },
      kUnsupported, Resource::soft_cap);
}

}  // namespace
}  // namespace kvarena::test
