// Gather, scatter and conversion on the GPU against the reference.

#include "kernel/cuda_pool.hpp"
#include "kernels/gather/gather.h"
#include "kernels/reference/gather.hpp"

#include "support/status_matchers.hpp"

#include "base/half.hpp"

#include <cuda_fp8.h>

namespace kvarena::test {
namespace {

using kernels::GatherParams;
using kernels::launch_convert_blocks;
using kernels::launch_gather;
using kernels::launch_scatter;
using kernels::ScatterParams;

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

/// A pool whose elements are all numbers.
void fill_with_numbers(TwinPool& pool, DType dtype, std::uint32_t seed) {
  const auto count = static_cast<std::int64_t>(pool.bytes.size()) / bytes_of(dtype);
  const auto values = random_elements(count, dtype, seed);
  std::copy(values.begin(), values.end(), pool.bytes.begin());
  pool.upload();
}

std::vector<std::vector<BlockId>> two_rows(std::int64_t num_blocks, std::uint32_t seed) {
  std::vector<std::vector<BlockId>> rows(2);
  for (const std::int32_t id : shuffled_ids(num_blocks, seed)) {
    rows[rows[0].size() < 3 ? 0 : 1].emplace_back(id);
  }
  return rows;
}

class CudaGather : public CudaTest {
 protected:
  // Row 1 from its second token on, to `to` and back into a poisoned pool.
  void expect_round_trip(const PoolShape& shape, DType to, std::uint32_t seed) {
    TwinPool pool(shape);
    fill_with_numbers(pool, shape.dtype_k, seed);
    const TwinTables tables(two_rows(shape.num_blocks, seed));
    const std::int64_t tokens = (shape.num_blocks - 3) * shape.block_size - 1;
    const auto bytes_k =
        static_cast<std::size_t>(tokens * shape.num_heads * shape.dim_k * bytes_of(to));
    const auto bytes_v =
        static_cast<std::size_t>(tokens * shape.num_heads * shape.dim_v * bytes_of(to));
    std::vector<std::byte> key(bytes_k);
    std::vector<std::byte> value(bytes_v);
    kernels::reference::gather(
        {pool.host_view, tables.host(), 1, 1, tokens, key.data(), value.data(), to});
    const DeviceArray<std::byte> device_key(bytes_k);
    const DeviceArray<std::byte> device_value(bytes_v);
    ASSERT_OK(launch_gather({pool.device_view, tables.device(), 1, 1, tokens, device_key.data(),
                             device_value.data(), to},
                            stream_));
    finish();
    EXPECT_TRUE(same_bytes(device_key.download(), key))
        << name_of(to) << " from " << name_of(shape);
    EXPECT_TRUE(same_bytes(device_value.download(), value))
        << name_of(to) << " from " << name_of(shape);
    if (to != shape.dtype_k) return;

    TwinPool copy(shape);
    ASSERT_OK(launch_scatter({copy.device_view, tables.device(), 1, 1, tokens, device_key.data(),
                              device_value.data(), to},
                             stream_));
    finish();
    const std::vector<std::byte> written_bytes = copy.device.download();
    std::copy(written_bytes.begin(), written_bytes.end(), copy.bytes.begin());
    std::vector<std::byte> key_again(bytes_k);
    std::vector<std::byte> value_again(bytes_v);
    kernels::reference::gather(
        {copy.host_view, tables.host(), 1, 1, tokens, key_again.data(), value_again.data(), to});
    EXPECT_EQ(key_again, key) << name_of(shape);
    EXPECT_EQ(value_again, value) << name_of(shape);
    std::size_t written = 0;
    for (const std::byte b : copy.bytes) written += b != std::byte{0xFF} ? 1U : 0U;
    EXPECT_LE(written, bytes_k + bytes_v) << name_of(shape);
  }
};

TEST_F(CudaGather, EqualsTheReferenceAndScattersBack) {
  std::uint32_t seed = 0;
  for (const DType from : kFloats) {
    for (const DType to : kFloats) {
      for (const std::int32_t dim : {64, 96, 128, 256, 80, 7}) {
        for (const std::int32_t block_size : {1, 7, 16, 32, 128}) {
          for (const TileOrder order : {TileOrder::rows, TileOrder::chunked}) {
            PoolShape shape;
            shape.dim_k = dim;
            shape.dim_v = ++seed % 4 == 0 ? 2 * dim : dim;
            shape.dtype_k = shape.dtype_v = from;
            shape.block_size = block_size;
            shape.order = order;
            shape.block_major = seed % 3 != 0;
            shape.num_blocks = 5;
            if (is_valid(shape) && is_picked(seed)) expect_round_trip(shape, to, seed);
          }
        }
      }
    }
  }
}

TEST_F(CudaGather, SkippedTokensAndNullOutputsStayAsTheyAre) {
  const PoolShape shape;
  TwinPool pool(shape);
  fill_with_numbers(pool, DType::bf16, 3);
  const TwinTables tables({{BlockId(4), kNoBlock, BlockId(9), BlockId(1)}});
  std::vector<std::byte> key(64 * 2 * 64 * 2, std::byte{0x55});
  const DeviceArray<std::byte> out(key);
  ASSERT_OK(launch_gather(
      {pool.device_view, tables.device(), 0, 0, 64, out.data(), nullptr, DType::bf16}, stream_));
  finish();
  for (const std::int64_t block : {0, 3}) {
    kernels::reference::gather({pool.host_view, tables.host(), 0,
                                static_cast<std::int32_t>(block * 16), 16,
                                key.data() + block * 16 * 256, nullptr, DType::bf16});
  }
  EXPECT_TRUE(same_bytes(out.download(), key));
}

TEST_F(CudaGather, ConvertsBlocksBetweenOrdersAndTypes) {
  std::uint32_t seed = 0;
  for (const std::int32_t dim : {64, 96, 128, 256}) {
    for (const std::int32_t block_size : {16, 48, 128}) {
      for (const DType to : {DType::bf16, DType::f16}) {
        for (const bool chunk : {true, false}) {
          PoolShape from;
          from.dim_k = from.dim_v = dim;
          from.block_size = block_size;
          from.order = chunk ? TileOrder::rows : TileOrder::chunked;
          PoolShape target = from;
          target.order = chunk ? TileOrder::chunked : TileOrder::rows;
          target.dtype_k = target.dtype_v = to;
          target.num_blocks = 6;
          target.block_major = ++seed % 2 == 0;
          TwinPool source(from);
          fill_with_numbers(source, DType::bf16, seed);
          TwinPool pool(target);
          std::vector<BlockCopy> copies = {{BlockId(8), BlockId(0)}, {BlockId(3), BlockId(5)}};
          kernels::reference::convert_blocks({source.host_view, pool.host_view, copies.data(), 2});
          copies.push_back({BlockId(9), BlockId(1)});
          copies.push_back({BlockId(1), BlockId(6)});
          copies.push_back({kNoBlock, BlockId(1)});
          const DeviceArray<BlockCopy> list(copies);
          ASSERT_OK(launch_convert_blocks({source.device_view, pool.device_view, list.data(), 5},
                                          stream_));
          finish();
          EXPECT_TRUE(same_bytes(pool.device.download(), pool.bytes)) << name_of(target);
        }
      }
    }
  }
}

TEST_F(CudaGather, Fp8IsMultipliedByItsScale) {
  PoolShape shape;
  shape.dtype_k = shape.dtype_v = DType::fp8_e4m3;
  shape.order = TileOrder::chunked;
  TwinPool pool(shape);
  for (std::size_t i = 0; i < pool.bytes.size(); ++i) {
    pool.bytes[i] = static_cast<std::byte>(i * 37 % 120 + (i % 2) * 128);
  }
  pool.upload();
  const TwinTables tables({{BlockId(7), BlockId(2)}});
  const std::vector<float> scales = {0.25F, 3.0F};
  const DeviceArray<float> device_scales(scales);
  const DeviceArray<float> out(32 * 2 * 64);
  ASSERT_OK(launch_gather({pool.device_view,
                           tables.device(),
                           0,
                           0,
                           32,
                           nullptr,
                           out.data(),
                           DType::f32,
                           {nullptr, device_scales.data(), true}},
                          stream_));
  finish();
  const std::vector<float> values = out.download();
  const PlaneView& plane = pool.host_view.value;
  for (std::int32_t i = 0; i < 32 * 2 * 64; ++i) {
    const std::int32_t dim = i % 64;
    const std::int32_t head = i / 64 % 2;
    const std::int32_t token = i / 128;
    const std::byte bits =
        plane.base[element_offset(plane, 1, token < 16 ? 7 : 2, head, token % 16, dim)];
    const __half_raw half =
        __nv_cvt_fp8_to_halfraw(std::to_integer<__nv_fp8_storage_t>(bits), __NV_E4M3);
    ASSERT_EQ(values[static_cast<std::size_t>(i)],
              f32_from_f16(half.x) * scales[static_cast<std::size_t>(head)]);
  }
}

}  // namespace
}  // namespace kvarena::test
