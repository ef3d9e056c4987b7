// Append and block copies: exactly their slots change, to exactly the bits of the reference.

#include "kernels/reference/kv_write.hpp"

#include "base/half.hpp"
#include "kvarena/attention/kv_write.hpp"
#include "kvarena/base/tile_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace kvarena::test {
namespace {

constexpr std::int64_t kBlocks = 9;

struct Pool {
  std::vector<std::byte> bytes;
  KvLayerView kv;

  Pool(std::int32_t heads, std::int32_t dim_k, std::int32_t dim_v, DType dtype_k, DType dtype_v,
       std::int32_t block_size, bool block_major) {
    const auto plane = [&](std::int32_t dim, DType dtype) {
      PlaneView view;
      view.num_heads = heads;
      view.head_dim = dim;
      view.dtype = dtype;
      view.token_stride = dim * bytes_of(dtype);
      view.head_stride = view.token_stride * block_size;
      return view;
    };
    kv.key = plane(dim_k, dtype_k);
    kv.value = plane(dim_v, dtype_v);
    kv.block_size = block_size;
    kv.num_blocks = kBlocks;
    const std::int64_t k_bytes = (kv.key.head_stride * heads + 15) / 16 * 16;
    const std::int64_t v_bytes = (kv.value.head_stride * heads + 15) / 16 * 16;
    bytes.assign(static_cast<std::size_t>((k_bytes + v_bytes) * kBlocks), std::byte{0xAB});
    kv.key.base = bytes.data();
    kv.value.base = bytes.data() + (block_major ? k_bytes : k_bytes * kBlocks);
    kv.key.block_stride = block_major ? k_bytes + v_bytes : k_bytes;
    kv.value.block_stride = block_major ? k_bytes + v_bytes : v_bytes;
  }
};

std::vector<std::byte> random_elements(std::int64_t count, DType dtype, std::uint32_t seed) {
  std::vector<std::byte> values(static_cast<std::size_t>(count * bytes_of(dtype)));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 1000.0F);
  for (std::int64_t i = 0; i < count; ++i) store_f32(values.data(), dtype, i, normal(random));
  if (count > 3) {
    store_f32(values.data(), dtype, 0, std::nanf(""));
    store_f32(values.data(), dtype, 1, 1e30F);
    store_f32(values.data(), dtype, 2, 1e-7F);
  }
  return values;
}

TEST(AppendKv, WritesExactlyItsSlotsWithTheReferencesBits) {
  std::uint32_t seed = 0;
  for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType key : {DType::f32, DType::f16, DType::bf16}) {
      for (const std::int32_t block_size : {1, 7, 16}) {
        const DType value = seed % 2 == 0 ? key : from;
        const bool block_major = seed % 3 != 0;
        Pool ours(3, 7, 40, key, value, block_size, block_major);
        Pool reference(3, 7, 40, key, value, block_size, block_major);
        std::vector<std::int64_t> slots(static_cast<std::size_t>(kBlocks * block_size));
        for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int64_t>(i);
        std::shuffle(slots.begin(), slots.end(), std::mt19937(++seed));
        slots.resize(slots.size() / 2 + 1);
        slots[0] = -1;
        const auto tokens = static_cast<std::int64_t>(slots.size());
        const auto k = random_elements(tokens * 3 * 7, from, seed);
        const auto v = random_elements(tokens * 3 * 40, from, seed + 100);
        auto workers = CpuWorkers::create(1 + static_cast<std::int32_t>(seed % 3));
        ASSERT_TRUE(workers.is_ok());
        const Status status = append_kv({ours.kv, k.data(), v.data(), from, slots.data(), tokens},
                                        seed % 2 == 0 ? nullptr : &*workers);
        ASSERT_TRUE(status.is_ok());
        kernels::reference::append({reference.kv, k.data(), v.data(), slots.data(), tokens, from});
        EXPECT_EQ(ours.bytes, reference.bytes) << name_of(from) << " to " << name_of(key);
      }
    }
  }
}

// The reference's own write set: a fresh pool differs only inside the appended token's rows.
TEST(AppendKv, OneTokenChangesItsRowsOnly) {
  Pool pool(2, 8, 8, DType::f16, DType::f16, 4, true);
  const std::vector<float> ones(2 * 8, 1.0F);
  const std::int64_t slot = 4 * 4 + 2;
  ASSERT_TRUE(append_kv({pool.kv, ones.data(), ones.data(), DType::f32, &slot, 1}).is_ok());
  std::size_t changed = 0;
  for (const std::byte b : pool.bytes) changed += b != std::byte{0xAB} ? 1 : 0;
  EXPECT_EQ(changed, 2U * 2U * 8U * 2U);
  for (const PlaneView& plane : {pool.kv.key, pool.kv.value}) {
    for (std::int32_t head = 0; head < 2; ++head) {
      const std::byte* row =
          plane.base + 4 * plane.block_stride + head * plane.head_stride + 2 * plane.token_stride;
      for (std::int32_t d = 0; d < 8; ++d) EXPECT_EQ(load_f32(row, DType::f16, d), 1.0F);
    }
  }
}

TEST(AppendKv, AliasedValueMayBeNull) {
  Pool pool(2, 8, 8, DType::f16, DType::f16, 4, true);
  const std::vector<float> ones(2 * 8, 1.0F);
  const std::int64_t slot = 3;
  AppendArgs args{pool.kv, ones.data(), nullptr, DType::f32, &slot, 1};
  EXPECT_EQ(append_kv(args).resource, Resource::pointer);
  args.kv.value = args.kv.key;
  EXPECT_TRUE(append_kv(args).is_ok());
}

TEST(AppendKv, RefusesAndWritesNothing) {
  Pool pool(2, 8, 8, DType::f16, DType::f16, 4, true);
  const std::vector<std::byte> before = pool.bytes;
  const std::vector<float> ones(2 * 2 * 8, 1.0F);
  const std::vector<std::int64_t> slots{0, kBlocks * 4};
  AppendArgs args{pool.kv, ones.data(), ones.data(), DType::f32, slots.data(), 2};
  Status status = append_kv(args);
  EXPECT_EQ(status.code, StatusCode::invalid_argument);
  EXPECT_EQ(status.resource, Resource::token_index);
  EXPECT_EQ(status.subject, static_cast<std::uint64_t>(kBlocks * 4));
  const std::vector<std::int64_t> negative{0, -2};
  args.slots = negative.data();
  EXPECT_EQ(append_kv(args).resource, Resource::token_index);
  args.slots = slots.data();
  args.dtype = DType::int8;
  EXPECT_EQ(append_kv(args).code, StatusCode::unsupported);
  args.dtype = static_cast<DType>(99);
  EXPECT_EQ(append_kv(args).code, StatusCode::invalid_argument);
  EXPECT_EQ(append_kv(args).resource, Resource::dtype);
  args.dtype = DType::f32;
  args.kv.key.tile_order = TileOrder::chunked;
  EXPECT_EQ(append_kv(args).resource, Resource::tile_order);
  EXPECT_EQ(pool.bytes, before);
}

TEST(CopyBlocks, CopiesExactlyTheTargets) {
  for (const bool block_major : {true, false}) {
    Pool ours(2, 8, 24, DType::f16, DType::bf16, 4, block_major);
    std::mt19937 random(7);
    for (std::byte& b : ours.bytes) b = static_cast<std::byte>(random());
    std::vector<std::byte> want = ours.bytes;
    const std::vector<BlockCopy> copies{
        {BlockId{0}, BlockId{8}}, {BlockId{0}, BlockId{3}}, {BlockId{5}, BlockId{1}}};
    std::vector<BlockRegion> regions;
    const std::int64_t stride = ours.kv.key.block_stride;
    if (block_major) {
      regions = {{ours.bytes.data(), stride, stride}};
    } else {
      regions = {{ours.kv.key.base, stride, stride},
                 {ours.kv.value.base, ours.kv.value.block_stride, ours.kv.value.block_stride}};
    }
    for (const BlockRegion& r : regions) {
      kernels::reference::copy_blocks({want.data() + (r.base - ours.bytes.data()), r.block_stride,
                                       r.bytes, copies.data(),
                                       static_cast<std::int64_t>(copies.size())});
    }
    ASSERT_TRUE(copy_blocks(copies, regions, kBlocks).is_ok());
    EXPECT_EQ(ours.bytes, want);
  }
}

TEST(CopyBlocks, RefusesAndWritesNothing) {
  std::vector<std::byte> bytes(64, std::byte{1});
  bytes[0] = std::byte{2};
  const std::vector<std::byte> before = bytes;
  const std::vector<BlockRegion> regions{{bytes.data(), 16, 16}};
  const std::vector<BlockCopy> outside{{BlockId{0}, BlockId{1}}, {BlockId{0}, BlockId{4}}};
  EXPECT_EQ(copy_blocks(outside, regions, 4).resource, Resource::block_index);
  const std::vector<BlockCopy> onto_itself{{BlockId{0}, BlockId{1}}, {BlockId{2}, BlockId{2}}};
  EXPECT_EQ(copy_blocks(onto_itself, regions, 4).resource, Resource::block_index);
  const std::vector<BlockRegion> too_wide{{bytes.data(), 16, 17}};
  EXPECT_EQ(copy_blocks(std::span(outside).first(1), too_wide, 4).resource, Resource::block_bytes);
  EXPECT_EQ(bytes, before);
}

// Each element of a kept token is the source's, every other byte of the target is zero.
TEST(Scrub, KeepsTheFirstTokensOfTheSource) {
  struct Shape {
    std::int32_t dim_k, dim_v, block_size;
    DType dtype;
    TileOrder order;
  };
  const Shape shapes[] = {{5, 7, 3, DType::f16, TileOrder::rows},
                          {8, 24, 4, DType::f32, TileOrder::rows},
                          {96, 64, 32, DType::bf16, TileOrder::chunked},
                          {224, 32, 16, DType::fp8_e4m3, TileOrder::chunked}};
  for (const Shape& shape : shapes) {
    for (const std::int32_t kept : {0, 1, 2, shape.block_size}) {
      Pool pool(3, shape.dim_k, shape.dim_v, shape.dtype, shape.dtype, shape.block_size, kept == 1);
      pool.kv.key.tile_order = pool.kv.value.tile_order = shape.order;
      std::mt19937 random(3);
      for (std::byte& b : pool.bytes) b = static_cast<std::byte>(random());
      std::vector<std::byte> want = pool.bytes;
      const auto padded = [](const PlaneView& plane) {
        return (plane.head_stride * plane.num_heads + 15) / 16 * 16;
      };
      for (const PlaneKind kind : {PlaneKind::key, PlaneKind::value}) {
        const PlaneView& plane = kind == PlaneKind::key ? pool.kv.key : pool.kv.value;
        const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
        std::byte* base = want.data() + (plane.base - pool.bytes.data());
        std::fill_n(base + 4 * plane.block_stride, padded(plane), std::byte{0});
        for (std::int32_t i = 0; i < plane.num_heads * kept * plane.head_dim; ++i) {
          const std::int32_t token = i / plane.head_dim % kept;
          const std::int32_t head = i / plane.head_dim / kept;
          const auto at = [&](std::int64_t block) {
            return base + element_offset(plane, bytes, block, head, token, i % plane.head_dim);
          };
          std::copy_n(at(7), bytes, at(4));
        }
      }
      const kernels::BlockScrub scrub{BlockId(7), BlockId(4), kept};
      kernels::reference::scrub(
          {pool.kv, padded(pool.kv.key), padded(pool.kv.value), 1, 0, &scrub, 1});
      EXPECT_EQ(pool.bytes, want) << shape.dim_k << " dims, " << kept << " tokens kept";
    }
  }
}

}  // namespace
}  // namespace kvarena::test
