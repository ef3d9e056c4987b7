// Rows that are read out of blocks in either order of a tile.

#include "verify/pool_bytes.hpp"
#include "support/devices.hpp"

#include "kvarena/base/tile_order.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

namespace kvarena::verify {
namespace {

using Shape = std::tuple<TileOrder, std::int32_t>;  // elements a head

class PoolBytesRows : public testing::TestWithParam<Shape> {};

TEST_P(PoolBytesRows, AreThoseOfTheirTokens) {
  constexpr std::int32_t kBlock = 16;
  constexpr std::int32_t kHeads = 3;
  constexpr std::int64_t kBlocks = 5;
  constexpr std::int64_t kPadding = 48;  // bytes between the blocks
  const auto [order, dim] = GetParam();
  const std::int64_t row_bytes = std::int64_t{2} * dim;
  PlaneView plane{.block_stride = kHeads * kBlock * row_bytes + kPadding,
                  .head_stride = kBlock * row_bytes,
                  .token_stride = row_bytes,
                  .num_heads = kHeads,
                  .head_dim = dim,
                  .dtype = DType::bf16,
                  .tile_order = order};
  std::vector<std::byte> memory(static_cast<std::size_t>(kBlocks * plane.block_stride));
  plane.base = memory.data();
  const auto number_of = [dim = dim](std::int64_t block, std::int32_t head, std::int32_t token,
                                     std::int32_t d) {
    return static_cast<std::uint16_t>(((block * kHeads + head) * kBlock + token) * dim + d);
  };
  for (std::int64_t block = 0; block < kBlocks; ++block) {
    for (std::int32_t head = 0; head < kHeads; ++head) {
      for (std::int32_t token = 0; token < kBlock; ++token) {
        for (std::int32_t d = 0; d < dim; ++d) {
          const std::uint16_t number = number_of(block, head, token, d);
          std::memcpy(plane.base + element_offset(plane, 2, block, head, token, d), &number, 2);
        }
      }
    }
  }
  const auto device = test::make_device(DeviceKind::host);
  KvCache cache =
      KvCache::create(
          *device,
          {.layout = {.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 8, .dtype = DType::bf16},
           .size = {.num_blocks = 4},
           .num_q_heads = 1,
           .num_threads = 1})
          .value();
  PoolBytes bytes(cache);
  // Tokens 19 .. 45 of a sequence whose blocks 1, 2 are these.
  const std::vector<std::int64_t> blocks{4, 2};
  std::vector<std::byte> rows;
  ASSERT_TRUE(bytes.read_rows(plane, kBlock, blocks, 19, 46, rows).is_ok());
  ASSERT_EQ(std::ssize(rows), (46 - 19) * kHeads * row_bytes);
  std::size_t at = 0;
  for (std::int32_t token = 19; token < 46; ++token) {
    for (std::int32_t head = 0; head < kHeads; ++head) {
      for (std::int32_t d = 0; d < dim; ++d, at += 2) {
        std::uint16_t number = 0;
        std::memcpy(&number, rows.data() + at, 2);
        ASSERT_EQ(number, number_of(token < 32 ? 4 : 2, head, token % kBlock, d))
            << "token " << token << ", head " << head << ", element " << d;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, PoolBytesRows,
                         testing::Values(Shape{TileOrder::rows, 24}, Shape{TileOrder::rows, 64},
                                         Shape{TileOrder::chunked, 64},
                                         Shape{TileOrder::chunked, 16},
                                         Shape{TileOrder::chunked, 48}));

}  // namespace
}  // namespace kvarena::verify
