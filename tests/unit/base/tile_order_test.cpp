// Tile orders: every element of a block has a place of its own, and sixteen bytes of a token stay
// together.

#include "kvarena/base/tile_order.hpp"

#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

namespace kvarena::test {
namespace {

class ChunkedOrder
    : public ::testing::TestWithParam<std::tuple<PlaneKind, std::int32_t, std::int32_t>> {};

TEST_P(ChunkedOrder, IsABijectionOfABlock) {
  const auto [kind, bytes, head_dim] = GetParam();
  constexpr std::int32_t kBlockSize = 48;
  std::vector<int> seen(static_cast<std::size_t>(kBlockSize * head_dim));
  for (std::int32_t token = 0; token < kBlockSize; ++token) {
    for (std::int32_t dim = 0; dim < head_dim; ++dim) {
      const std::int32_t at = chunked_offset(kind, bytes, head_dim, token, dim);
      ASSERT_GE(at, 0);
      ASSERT_LT(at, kBlockSize * head_dim);
      EXPECT_EQ(seen[static_cast<std::size_t>(at)]++, 0) << token << ", " << dim;
    }
  }
}

TEST_P(ChunkedOrder, KeepsSixteenAlignedBytesOfATokenTogether) {
  const auto [kind, bytes, head_dim] = GetParam();
  const std::int32_t width = kChunkBytes / bytes;
  for (std::int32_t token = 0; token < 2 * kTileTokens; ++token) {
    for (std::int32_t dim = 0; dim < head_dim; dim += width) {
      const std::int32_t first = chunked_offset(kind, bytes, head_dim, token, dim);
      EXPECT_EQ(first % width, 0);
      for (std::int32_t i = 1; i < width; ++i) {
        EXPECT_EQ(chunked_offset(kind, bytes, head_dim, token, dim + i), first + i);
      }
    }
  }
}

TEST_P(ChunkedOrder, PutsTilesOneAfterAnother) {
  const auto [kind, bytes, head_dim] = GetParam();
  for (std::int32_t token = 0; token < kTileTokens; ++token) {
    const std::int32_t first = chunked_offset(kind, bytes, head_dim, token, 5);
    EXPECT_LT(first, kTileTokens * head_dim);
    EXPECT_EQ(chunked_offset(kind, bytes, head_dim, token + 3 * kTileTokens, 5),
              first + 3 * kTileTokens * head_dim);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ChunkedOrder,
                         ::testing::Combine(::testing::Values(PlaneKind::key, PlaneKind::value),
                                            ::testing::Values(1, 2),
                                            ::testing::Values(32, 64, 96, 128, 160, 256)));

// The operand layout that attention's loads rely on, written out once more by hand.
TEST(ChunkedOrderOperands, AWarpsLoadIsOneRunOfKOrV) {
  EXPECT_EQ(chunked_key_offset(0, 0), 0);
  EXPECT_EQ(chunked_key_offset(0, 8), 8);
  EXPECT_EQ(chunked_key_offset(1, 0), 32);
  EXPECT_EQ(chunked_key_offset(8, 0), 256);
  EXPECT_EQ(chunked_key_offset(0, 32), 512);
  EXPECT_EQ(chunked_value_offset(0, 8, 128), 8);
  EXPECT_EQ(chunked_value_offset(2, 0, 128), 64);
  EXPECT_EQ(chunked_value_offset(1, 0, 128), 256);
  EXPECT_EQ(chunked_value_offset(8, 0, 128), 512);
  EXPECT_EQ(chunked_value_offset(0, 64, 128), 1024);
  EXPECT_EQ(chunked_value_offset(2, 64, 96), 1024 + 32);
  EXPECT_EQ(chunked_value_offset(1, 64, 96), 1024 + 128);
}

TEST(ChunkedOrderOperands, AWarpsLoadIsOneRunOfOneByteElementsToo) {
  EXPECT_EQ(chunked_byte_key_offset(0, 16, 128), 16);
  EXPECT_EQ(chunked_byte_key_offset(1, 0, 128), 64);
  EXPECT_EQ(chunked_byte_key_offset(8, 0, 128), 512);
  EXPECT_EQ(chunked_byte_key_offset(0, 64, 128), 1024);
  EXPECT_EQ(chunked_byte_key_offset(1, 64, 96), 1024 + 32);
  EXPECT_EQ(chunked_byte_value_offset(0, 112, 128), 112);
  EXPECT_EQ(chunked_byte_value_offset(2, 0, 128), 128);
  EXPECT_EQ(chunked_byte_value_offset(1, 0, 128), 512);
  EXPECT_EQ(chunked_byte_value_offset(8, 0, 128), 1024);
  EXPECT_EQ(chunked_byte_value_offset(0, 128, 256), 2048);
  EXPECT_EQ(chunked_byte_value_offset(2, 0, 64), 64);
  EXPECT_EQ(chunked_byte_value_offset(1, 8, 64), 256 + 8);
  EXPECT_EQ(chunked_byte_value_offset(2, 64, 96), 1024 + 32);
  EXPECT_EQ(chunked_byte_value_offset(1, 64, 96), 1024 + 128);
}

TEST(ElementOffset, FollowsTheStridesInBothOrders) {
  PlaneView plane;
  plane.block_stride = 1LL << 33;
  plane.head_stride = 4096;
  plane.token_stride = 256;
  plane.head_dim = 128;
  EXPECT_EQ(element_offset(plane, PlaneKind::key, 2, 3, 2, 5, 7),
            3 * (1LL << 33) + 2 * 4096 + 5 * 256 + 14);
  plane.tile_order = TileOrder::chunked;
  EXPECT_EQ(element_offset(plane, PlaneKind::key, 2, 3, 2, 5, 7),
            3 * (1LL << 33) + 2 * 4096 + 2 * chunked_key_offset(5, 7));
  EXPECT_EQ(element_offset(plane, PlaneKind::value, 2, 3, 2, 5, 7),
            3 * (1LL << 33) + 2 * 4096 + 2 * chunked_value_offset(5, 7, 128));
}

TEST(ChunkedLayout, RefusesWhatHasNoChunkedOrder) {
  UniformLayoutOptions options{.num_layers = 1, .num_kv_heads = 2, .head_dim_k = 96};
  options.tile_order = TileOrder::chunked;
  EXPECT_OK(KvLayout::create(options));
  options.head_dim_v = 80;
  EXPECT_REFUSES(KvLayout::create(options), unsupported, head_dim);
  options.head_dim_v = 0;
  options.dtype = DType::f32;
  EXPECT_REFUSES(KvLayout::create(options), unsupported, dtype);
  options.dtype = DType::fp8_e4m3;
  EXPECT_OK(KvLayout::create(options));
  options.block_size_tokens = 24;
  EXPECT_REFUSES(KvLayout::create(options), unsupported, tile_order);

  GroupSpec group;
  group.tile_order = TileOrder::chunked;
  group.planes = {
      {.layer = 0, .kind = PlaneKind::key, .num_heads = 1, .head_dim = 64},
      {.layer = 0, .kind = PlaneKind::value, .num_heads = 1, .head_dim = 64, .alias_of = 0}};
  EXPECT_REFUSES(KvLayout::create(std::span(&group, 1)), unsupported, alias_of);
}

}  // namespace
}  // namespace kvarena::test
