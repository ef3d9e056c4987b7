// Append on the GPU: exactly the bytes of the reference, in the slots named and nowhere else.

#include "kernel/cuda_pool.hpp"
#include "kernels/append/append.h"
#include "kernels/reference/kv_write.hpp"

#include "support/status_matchers.hpp"

#include "base/half.hpp"
#include "kvarena/base/latent_fp8.hpp"

#include <cuda_fp8.h>

#include <cmath>
#include <limits>
#include <random>

namespace kvarena::test {
namespace {

using kernels::AppendParams;
using kernels::AppendRunsParams;
using kernels::launch_append;
using kernels::launch_append_runs;
using kernels::TokenRun;

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

/// Random distinct slots of half the pool, some skipped, some outside it.
std::vector<std::int64_t> random_slots(const PoolShape& shape, std::uint32_t seed) {
  std::vector<std::int64_t> slots;
  for (const std::int32_t id : shuffled_ids(shape.num_blocks * shape.block_size, seed)) {
    slots.push_back(id);
  }
  slots.resize(slots.size() / 2 + 1);
  slots[0] = -1;
  return slots;
}

class CudaAppend : public CudaTest {
 protected:
  std::uint32_t launches_ = 0;  ///< alternates between plain and programmatic launches

  // Appends random tokens to both pools and compares every byte.
  void expect_same(const PoolShape& shape, DType from, std::uint32_t seed) {
    TwinPool pool(shape);
    const std::vector<std::int64_t> slots = random_slots(shape, seed);
    const auto tokens = static_cast<std::int64_t>(slots.size());
    const auto key = random_elements(tokens * shape.num_heads * shape.dim_k, from, seed);
    const auto value = random_elements(tokens * shape.num_heads * shape.dim_v, from, seed + 100);
    kernels::reference::append(
        {pool.host_view, key.data(), value.data(), slots.data(), tokens, from});
    std::vector<std::int64_t> given = slots;
    given[0] = seed % 2 == 0 ? -1 : shape.num_blocks * shape.block_size;
    const DeviceArray<std::byte> device_key(key);
    const DeviceArray<std::byte> device_value(value);
    const DeviceArray<std::int64_t> device_slots(given);
    ASSERT_OK(launch_append({pool.device_view, device_key.data(), device_value.data(),
                             device_slots.data(), tokens, from},
                            launches_++ % 2 == 0, stream_));
    finish();
    EXPECT_TRUE(same_bytes(pool.device.download(), pool.bytes))
        << name_of(from) << " to " << name_of(shape);
  }
};

/// New latents: some of a usual size, some far apart, zeros, and what is not finite.
std::vector<std::byte> random_latents(std::int64_t tokens, DType dtype, std::uint32_t seed) {
  const std::vector<std::byte> plain = random_elements(tokens * kLatentFp8Dim, DType::f32, seed);
  std::vector<std::byte> latents(
      static_cast<std::size_t>(tokens * kLatentFp8Dim * bytes_of(dtype)));
  std::mt19937 random(seed);
  for (std::int64_t i = 0; i < tokens * kLatentFp8Dim; ++i) {
    float value = load_f32(plain.data(), DType::f32, i);
    const auto kind = static_cast<std::uint32_t>(i / kLatentFp8Run) % 5;
    if (kind == 1) value *= std::ldexp(1.0F, static_cast<int>(random() % 24) - 12);
    if (kind == 2) value = 0.0F;
    const bool has_scale = i % kLatentFp8Dim < kLatentFp8ValueDim;
    if (kind == 3 && has_scale && random() % 50 == 0)
      value = -std::numeric_limits<float>::infinity();
    if (kind == 4 && has_scale && random() % 50 == 0) value = std::nanf("");
    if (kind == 4 && dtype == DType::f32) value *= 1e-36F;
    store_f32(latents.data(), dtype, i, value);
  }
  return latents;
}

TEST_F(CudaAppend, LatentsInEightBitsEqualTheReference) {
  std::uint32_t seed = 900;
  for (const DType from : kFloats) {
    for (const std::int32_t block_size : {1, 7, 16, 64}) {
      for (const bool is_strided : {false, true}) {
        PlaneView plane{.head_stride = std::int64_t{block_size} * kLatentFp8Bytes,
                        .token_stride = kLatentFp8Bytes,
                        .num_heads = 1 + static_cast<std::int32_t>(++seed % 2),
                        .head_dim = kLatentFp8Dim,
                        .dtype = DType::latent_fp8};
        plane.block_stride = plane.num_heads * plane.head_stride + 48;
        constexpr std::int64_t kBlocks = 9;
        std::vector<std::byte> host(static_cast<std::size_t>(kBlocks * plane.block_stride),
                                    std::byte{0xA5});
        const DeviceArray<std::byte> device(host);
        std::vector<std::int64_t> slots;
        for (const std::int32_t id : shuffled_ids(kBlocks * block_size, seed)) slots.push_back(id);
        slots[0] = -1;
        const auto tokens = static_cast<std::int64_t>(slots.size());
        // With a stride, the latents are the odd rows of an array of two for each token.
        const std::vector<std::byte> latents =
            random_latents(tokens * plane.num_heads * (is_strided ? 2 : 1), from, seed);
        const std::int64_t stride =
            is_strided ? 2 * plane.num_heads * kLatentFp8Dim * bytes_of(from) : 0;
        const auto view_of = [&](std::byte* base) {
          KvLayerView kv{plane, plane, block_size, kBlocks};
          kv.key.base = kv.value.base = base;
          kv.value.head_dim = kLatentFp8ValueDim;
          return kv;
        };
        AppendParams params{view_of(host.data()), latents.data(), nullptr,
                            slots.data(),         tokens,         from};
        params.key_token_stride = stride;
        kernels::reference::append(params);
        const DeviceArray<std::byte> device_latents(latents);
        const DeviceArray<std::int64_t> device_slots(slots);
        params.kv = view_of(device.data());
        params.key = device_latents.data();
        params.slots = device_slots.data();
        ASSERT_OK(launch_append(params, is_strided, stream_));
        finish();
        EXPECT_TRUE(same_bytes(device.download(), host)) << name_of(from) << ' ' << block_size;
      }
    }
  }
}

TEST_F(CudaAppend, EqualsTheReferenceForAllTypesDimsBlocksAndOrders) {
  std::uint32_t seed = 0;
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      for (const std::int32_t dim : {64, 96, 128, 256, 80}) {
        for (const std::int32_t block_size : {1, 7, 16, 32, 128}) {
          for (const TileOrder order : {TileOrder::rows, TileOrder::chunked}) {
            PoolShape shape;
            shape.dim_k = shape.dim_v = dim;
            shape.dtype_k = to;
            shape.dtype_v = ++seed % 5 == 0 ? from : to;
            shape.block_size = block_size;
            shape.order = order;
            shape.block_major = seed % 3 != 0;
            shape.num_heads = seed % 4 == 0 ? 3 : 2;
            if (is_valid(shape) && is_picked(seed)) expect_same(shape, from, seed);
          }
        }
      }
    }
  }
}

TEST_F(CudaAppend, DimsOfKAndVMayDifferAndNeedNotDivideIntoVectors) {
  std::uint32_t seed = 0;
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      for (const auto& [dim_k, dim_v] : {std::pair{7, 40}, {192, 128}, {1, 1}, {5, 16}}) {
        PoolShape shape;
        shape.dim_k = dim_k;
        shape.dim_v = dim_v;
        shape.dtype_k = shape.dtype_v = to;
        shape.num_heads = 3;
        shape.block_size = 5;
        expect_same(shape, from, ++seed);
      }
    }
  }
}

// Many tokens: several a thread, more units than one thread block has, an uneven end.
TEST_F(CudaAppend, ManyTokensAndManyHeads) {
  PoolShape shape;
  shape.dim_k = shape.dim_v = 96;
  shape.order = TileOrder::chunked;
  shape.num_heads = 32;
  shape.block_size = 128;
  shape.num_blocks = 53;
  expect_same(shape, DType::bf16, 1);
  expect_same(shape, DType::f32, 2);
}

TEST_F(CudaAppend, UnalignedInputsGoElementByElement) {
  const PoolShape shape;
  TwinPool pool(shape);
  const auto key = random_elements(2 * 64 + 1, DType::bf16, 1);
  const std::vector<std::int64_t> slots = {17};
  kernels::reference::append(
      {pool.host_view, key.data() + 2, key.data() + 2, slots.data(), 1, DType::bf16});
  const DeviceArray<std::byte> device_key(key);
  const DeviceArray<std::int64_t> device_slots(slots);
  ASSERT_OK(launch_append({pool.device_view, device_key.data() + 2, device_key.data() + 2,
                           device_slots.data(), 1, DType::bf16},
                          launches_++ % 2 == 0, stream_));
  finish();
  EXPECT_TRUE(same_bytes(pool.device.download(), pool.bytes));
}

TEST_F(CudaAppend, NanStaysNanAndInfinityInfinity) {
  PoolShape shape;
  shape.num_heads = 1;
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> row(64, 1.0F);
  row[0] = std::nanf("");
  row[1] = inf;
  row[2] = -inf;
  row[3] = 1e30F;
  for (const DType to : {DType::f32, DType::f16, DType::bf16}) {
    shape.dtype_k = shape.dtype_v = to;
    const TwinPool pool(shape);
    const DeviceArray<float> input(row);
    const DeviceArray<std::int64_t> slots(std::vector<std::int64_t>{3});
    ASSERT_OK(
        launch_append({pool.device_view, input.data(), input.data(), slots.data(), 1, DType::f32},
                      launches_++ % 2 == 0, stream_));
    finish();
    const auto bytes = pool.device.download();
    const std::byte* stored = bytes.data() + 3 * 64 * bytes_of(to);
    EXPECT_TRUE(std::isnan(load_f32(stored, to, 0)));
    EXPECT_EQ(load_f32(stored, to, 1), inf);
    EXPECT_EQ(load_f32(stored, to, 2), -inf);
    EXPECT_EQ(load_f32(stored, to, 3), to == DType::f16 ? inf : load_f32(stored, to, 3));
    EXPECT_EQ(load_f32(stored, to, 4), 1.0F);
  }
}

TEST_F(CudaAppend, RunsGoThroughPermutedTables) {
  for (const std::int32_t block_size : {1, 7, 16, 128}) {
    PoolShape shape;
    shape.block_size = block_size;
    shape.num_blocks = 40;
    shape.order = block_size % 16 == 0 ? TileOrder::chunked : TileOrder::rows;
    TwinPool pool(shape);
    const auto ids = shuffled_ids(shape.num_blocks, 5);
    std::vector<std::vector<BlockId>> rows(4);
    for (std::size_t i = 0; i < 36; ++i) rows[i / 9].emplace_back(ids[i]);
    rows[3][8] = kNoBlock;
    const TwinTables tables(rows);

    const std::vector<TokenRun> runs = {
        {2, 3}, {0, 0}, {-1, 0}, {1, 2 * block_size - 1}, {9, 0}, {3, 8 * block_size - 1}};
    const std::vector<std::int64_t> counts = {3, 0, 2, 1 + 2 * block_size, 1, 2};
    std::vector<std::int64_t> offsets = {0};
    std::vector<std::int64_t> slots;
    for (std::size_t r = 0; r < runs.size(); ++r) {
      offsets.push_back(offsets.back() + counts[r]);
      for (std::int64_t i = 0; i < counts[r]; ++i) {
        const std::int64_t at = runs[r].start + i;
        const bool has_row = runs[r].row >= 0 && runs[r].row < 4;
        const std::int64_t block =
            has_row ? tables.host().block(runs[r].row, at / block_size).value : -1;
        slots.push_back(block < 0 ? -1 : block * block_size + at % block_size);
      }
    }
    const auto listed = static_cast<std::int64_t>(slots.size());
    const std::int64_t tokens = listed + 5;
    const auto key = random_elements(tokens * 2 * 64, DType::bf16, 7);
    kernels::reference::append(
        {pool.host_view, key.data(), key.data(), slots.data(), listed, DType::bf16});
    const DeviceArray<std::byte> input(key);
    const DeviceArray<TokenRun> device_runs(runs);
    const DeviceArray<std::int64_t> device_offsets(offsets);
    ASSERT_OK(launch_append_runs(
        {pool.device_view, tables.device(), input.data(), input.data(), device_runs.data(),
         device_offsets.data(), static_cast<std::int64_t>(runs.size()), tokens, DType::bf16},
        launches_++ % 2 == 0, stream_));
    finish();
    EXPECT_TRUE(same_bytes(pool.device.download(), pool.bytes)) << block_size;
  }
}

// A decode step: every run one token, which the kernel finds at the first guess.
TEST_F(CudaAppend, RunsOfOneToken) {
  PoolShape shape;
  shape.num_blocks = 300;
  shape.num_heads = 1;
  TwinPool pool(shape);
  std::vector<std::vector<BlockId>> rows;
  std::vector<TokenRun> runs;
  std::vector<std::int64_t> offsets = {0};
  std::vector<std::int64_t> slots;
  for (const std::int32_t id : shuffled_ids(300, 3)) {
    rows.push_back({BlockId(id)});
    const auto row = static_cast<std::int32_t>(runs.size());
    runs.push_back({row, row % 16});
    offsets.push_back(row + 1);
    slots.push_back(id * 16 + row % 16);
  }
  const TwinTables tables(rows);
  const auto key = random_elements(300 * 64, DType::f32, 7);
  kernels::reference::append(
      {pool.host_view, key.data(), key.data(), slots.data(), 300, DType::f32});
  const DeviceArray<std::byte> input(key);
  const DeviceArray<TokenRun> device_runs(runs);
  const DeviceArray<std::int64_t> device_offsets(offsets);
  ASSERT_OK(launch_append_runs({pool.device_view, tables.device(), input.data(), input.data(),
                                device_runs.data(), device_offsets.data(), 300, 300, DType::f32},
                               launches_++ % 2 == 0, stream_));
  finish();
  EXPECT_TRUE(same_bytes(pool.device.download(), pool.bytes));
}

TEST_F(CudaAppend, Fp8DividesByItsScaleRoundsAndSaturates) {
  for (const bool per_head : {false, true}) {
    for (const TileOrder order : {TileOrder::rows, TileOrder::chunked}) {
      PoolShape shape;
      shape.dim_k = shape.dim_v = 96;
      shape.dtype_k = shape.dtype_v = DType::fp8_e4m3;
      shape.order = order;
      TwinPool pool(shape);
      const std::vector<float> scales = {0.5F, 0.037F};
      const std::int64_t slot = 5 * 16 + 9;
      const auto key = random_elements(2 * 96, DType::bf16, 3);
      for (std::int32_t head = 0; head < 2; ++head) {
        const float factor = 1.0F / scales[per_head ? static_cast<std::size_t>(head) : 0];
        for (std::int32_t d = 0; d < 96; ++d) {
          const float x = load_f32(key.data(), DType::bf16, head * 96 + d) * factor;
          const auto bits = std::byte{__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
          for (const PlaneView& plane : {pool.host_view.key, pool.host_view.value}) {
            plane.base[element_offset(plane, 1, 5, head, 9, d)] = bits;
          }
        }
      }
      const DeviceArray<std::byte> input(key);
      const DeviceArray<float> device_scales(scales);
      const DeviceArray<std::int64_t> slots(std::vector<std::int64_t>{slot});
      ASSERT_OK(launch_append({pool.device_view,
                               input.data(),
                               input.data(),
                               slots.data(),
                               1,
                               DType::bf16,
                               {device_scales.data(), device_scales.data(), per_head}},
                              launches_++ % 2 == 0, stream_));
      finish();
      EXPECT_TRUE(same_bytes(pool.device.download(), pool.bytes)) << per_head;
    }
  }
}

TEST_F(CudaAppend, IsCapturedAndReplayedWithNewSlots) {
  const PoolShape shape;
  TwinPool pool(shape);
  const auto key = random_elements(4 * 2 * 64, DType::bf16, 7);
  const DeviceArray<std::byte> input(key);
  DeviceArray<std::int64_t> slots(std::vector<std::int64_t>{-1, -1, -1, -1});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  EXPECT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  EXPECT_OK(
      launch_append({pool.device_view, input.data(), input.data(), slots.data(), 4, DType::bf16},
                    launches_++ % 2 == 0, stream_));
  EXPECT_CUDA(cudaStreamEndCapture(stream_, &graph));
  EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  for (std::int64_t replay = 0; replay < 20; ++replay) {
    const std::vector<std::int64_t> at = {replay, 40 + replay, -1, 100 + replay};
    slots.upload(at);
    EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
    finish();
    kernels::reference::append({pool.host_view, key.data(), key.data(), at.data(), 4, DType::bf16});
  }
  EXPECT_TRUE(same_bytes(pool.device.download(), pool.bytes));
  EXPECT_CUDA(cudaGraphExecDestroy(exec));
  EXPECT_CUDA(cudaGraphDestroy(graph));
}

}  // namespace
}  // namespace kvarena::test
