// Views of the layers of a pool in memory of the caller's.

#include "kvarena/allocator/layer_view.hpp"
#include "support/status_matchers.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

namespace kvarena {
namespace {

constexpr std::int64_t kBlocks = 3;

TEST(LayerView, PlanesTileTheMemoryOfTheCaller) {
  const KvLayout layout =
      KvLayout::create(
          {.num_layers = 2, .num_kv_heads = 2, .head_dim_k = 4, .block_size_tokens = 8})
          .value();
  const auto bytes = static_cast<std::size_t>(layout.pool_bytes(kBlocks).value());
  const std::unique_ptr<std::byte, decltype(&std::free)> memory(
      static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), std::free);
  for (const BlockOrder order : {BlockOrder::block_major, BlockOrder::layer_major}) {
    const PoolShape pool{layout, order, kBlocks};
    std::vector<int> times(bytes);
    for (std::int32_t layer = 0; layer < 2; ++layer) {
      const KvLayerView view = layer_view(pool, memory.get(), layer).value();
      EXPECT_EQ(view.block_size, 8);
      EXPECT_EQ(view.num_blocks, kBlocks);
      for (const PlaneView* plane : {&view.key, &view.value}) {
        for (std::int64_t block = 0; block < kBlocks; ++block) {
          const std::ptrdiff_t first = plane->base + block * plane->block_stride - memory.get();
          for (std::ptrdiff_t i = 0; i < plane->head_stride * plane->num_heads; ++i) {
            ++times.at(static_cast<std::size_t>(first + i));
          }
        }
      }
    }
    EXPECT_EQ(times, std::vector<int>(bytes, 1)) << "every byte is in one plane";
  }
}

TEST(LayerView, RefusesMemoryThatCannotBeAPool) {
  const KvLayout layout =
      KvLayout::create({.num_layers = 1, .num_kv_heads = 1, .head_dim_k = 8}).value();
  alignas(16) std::byte memory[32];
  const PoolShape pool{layout, BlockOrder::block_major, kBlocks};
  EXPECT_OK(layer_view(pool, memory, 0));
  EXPECT_FAILS(layer_view(pool, memory, 1), invalid_argument, layer);
  EXPECT_FAILS(layer_view(pool, memory, -1), invalid_argument, layer);
  EXPECT_FAILS(layer_view(pool, nullptr, 0), invalid_argument, pointer);
  EXPECT_FAILS(layer_view(pool, memory + 1, 0), invalid_argument, alignment);
  EXPECT_FAILS(layer_view({layout, BlockOrder::block_major, 0}, memory, 0), invalid_argument,
               num_blocks);
}

}  // namespace
}  // namespace kvarena
