// Tile orders: every element of a block has a place of its own, and sixteen bytes of a token stay
// together.

#include "kvarena/base/tile_order.hpp"

#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

namespace kvarena::test {
namespace {

class ChunkedOrder : public ::testing::TestWithParam<std::int32_t> {};  // bytes of a token

TEST_P(ChunkedOrder, IsABijectionOfABlock) {
  const std::int32_t row = GetParam();
  constexpr std::int32_t kBlockSize = 48;
  std::vector<int> seen(static_cast<std::size_t>(kBlockSize * row));
  for (std::int32_t token = 0; token < kBlockSize; ++token) {
    for (std::int32_t byte = 0; byte < row; ++byte) {
      const std::int32_t at = chunked_bytes(row, token, byte);
      ASSERT_GE(at, 0);
      ASSERT_LT(at, kBlockSize * row);
      EXPECT_EQ(seen[static_cast<std::size_t>(at)]++, 0) << token << ", " << byte;
    }
  }
}

TEST_P(ChunkedOrder, KeepsSixteenAlignedBytesOfATokenTogether) {
  const std::int32_t row = GetParam();
  for (std::int32_t token = 0; token < 2 * kTileTokens; ++token) {
    for (std::int32_t byte = 0; byte < row; byte += kChunkBytes) {
      const std::int32_t first = chunked_bytes(row, token, byte);
      EXPECT_EQ(first % kChunkBytes, 0);
      for (std::int32_t i = 1; i < kChunkBytes; ++i) {
        EXPECT_EQ(chunked_bytes(row, token, byte + i), first + i);
      }
    }
  }
}

TEST_P(ChunkedOrder, PutsTilesOneAfterAnother) {
  const std::int32_t row = GetParam();
  for (std::int32_t token = 0; token < kTileTokens; ++token) {
    const std::int32_t first = chunked_bytes(row, token, 5);
    EXPECT_LT(first, kTileTokens * row);
    EXPECT_EQ(chunked_bytes(row, token + 3 * kTileTokens, 5), first + 3 * kTileTokens * row);
  }
}

// What lets a kernel move 32 bytes of a token as two chunks whose distance is known.
TEST_P(ChunkedOrder, TheChunksOfAPairAreNeighbours) {
  const std::int32_t row = GetParam();
  for (std::int32_t token = 0; token < kTileTokens; ++token) {
    const std::int32_t step = chunked_bytes(row, token, 16) - chunked_bytes(row, token, 0);
    EXPECT_EQ(std::abs(step), kChunkBytes);
    for (std::int32_t byte = 0; byte < row; byte += 2 * kChunkBytes) {
      EXPECT_EQ(chunked_bytes(row, token, byte + 16) - chunked_bytes(row, token, byte), step);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RowBytes, ChunkedOrder,
                         ::testing::Values(32, 64, 96, 128, 160, 192, 256, 384, 512, 1152));

// The atoms that wgmma reads, written out by hand: 8 tokens x 64 bytes, or x 32 bytes.
TEST(ChunkedOrderOperands, AtomsOf64Bytes) {
  EXPECT_EQ(chunked_bytes(256, 0, 0), 0);
  EXPECT_EQ(chunked_bytes(256, 0, 16), 16);
  EXPECT_EQ(chunked_bytes(256, 1, 0), 64);
  EXPECT_EQ(chunked_bytes(256, 2, 0), 128 + 16);
  EXPECT_EQ(chunked_bytes(256, 2, 16), 128);
  EXPECT_EQ(chunked_bytes(256, 7, 48), 7 * 64);
  EXPECT_EQ(chunked_bytes(256, 0, 64), 512);
  EXPECT_EQ(chunked_bytes(256, 8, 0), 2048);
  EXPECT_EQ(chunked_bytes(192, 8, 0), 1536);
  EXPECT_EQ(chunked_bytes(256, 16, 0), 4096);
}

TEST(ChunkedOrderOperands, AtomsOf32Bytes) {
  EXPECT_EQ(chunked_bytes(160, 0, 16), 16);
  EXPECT_EQ(chunked_bytes(160, 1, 0), 32);
  EXPECT_EQ(chunked_bytes(160, 3, 16), 3 * 32 + 16);
  EXPECT_EQ(chunked_bytes(160, 4, 0), 4 * 32 + 16);
  EXPECT_EQ(chunked_bytes(160, 4, 16), 4 * 32);
  EXPECT_EQ(chunked_bytes(160, 0, 32), 256);
  EXPECT_EQ(chunked_bytes(160, 8, 0), 1280);
}

TEST(ElementOffset, FollowsTheStridesInBothOrders) {
  PlaneView plane;
  plane.block_stride = 1LL << 33;
  plane.head_stride = 4096;
  plane.token_stride = 256;
  plane.head_dim = 128;
  EXPECT_EQ(element_offset(plane, 2, 3, 2, 5, 7), 3 * (1LL << 33) + 2 * 4096 + 5 * 256 + 14);
  plane.tile_order = TileOrder::chunked;
  EXPECT_EQ(element_offset(plane, 2, 3, 2, 5, 7),
            3 * (1LL << 33) + 2 * 4096 + chunked_bytes(256, 5, 14));
}

TEST(ChunkedLayout, RefusesWhatHasNoChunkedOrder) {
  UniformLayoutOptions options{.num_layers = 1, .num_kv_heads = 2, .head_dim_k = 96};
  options.tile_order = TileOrder::chunked;
  EXPECT_OK(KvLayout::create(options));
  options.head_dim_v = 80;
  EXPECT_OK(KvLayout::create(options));
  options.head_dim_v = 72;
  EXPECT_REFUSES(KvLayout::create(options), unsupported, head_dim);
  options.head_dim_v = 0;
  options.dtype = DType::f32;
  EXPECT_REFUSES(KvLayout::create(options), unsupported, dtype);
  options.dtype = DType::fp8_e4m3;
  EXPECT_OK(KvLayout::create(options));
  options.head_dim_v = 80;
  EXPECT_REFUSES(KvLayout::create(options), unsupported, head_dim);
  options.head_dim_v = 0;
  options.block_size_tokens = 24;
  EXPECT_REFUSES(KvLayout::create(options), unsupported, tile_order);

  GroupSpec group;
  group.tile_order = TileOrder::chunked;
  group.planes = {
      {.layer = 0, .kind = PlaneKind::key, .num_heads = 1, .head_dim = 65},
      {.layer = 0, .kind = PlaneKind::value, .num_heads = 1, .head_dim = 64, .alias_of = 0}};
  EXPECT_REFUSES(KvLayout::create(std::span(&group, 1)), unsupported, head_dim);
}

// V that is the leading elements of K lies in K's order.
TEST(ChunkedLayout, APartOfAPlaneHasItsOrder) {
  PlaneView key;
  key.num_heads = 1;
  key.head_dim = 96;
  key.dtype = DType::bf16;
  key.tile_order = TileOrder::chunked;
  key.block_stride = 16 * 192;
  PlaneView value = key;
  value.head_dim = 64;
  value.token_stride = 192;
  for (std::int32_t token = 0; token < 16; ++token) {
    for (std::int32_t dim = 0; dim < 64; ++dim) {
      ASSERT_EQ(element_offset(value, 2, 3, 0, token, dim),
                element_offset(key, 2, 3, 0, token, dim));
    }
  }
  value.token_stride = 0;
  EXPECT_NE(element_offset(value, 2, 0, 0, 9, 0), element_offset(key, 2, 0, 0, 9, 0));
}

}  // namespace
}  // namespace kvarena::test
