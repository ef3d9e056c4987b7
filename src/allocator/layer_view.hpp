#pragma once

/// @file
/// The addresses of K and V of a layer in a pool, computed from its layout. Pure functions.

#include "kvarena/base/layout.hpp"
#include "kvarena/base/views.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// The facts that decide where a pool's bytes lie. The layout is borrowed.
struct PoolShape {
  const KvLayout& layout;
  BlockOrder order = BlockOrder::block_major;
  std::int64_t num_blocks = 0;
};

/// Returns K and V of one layer of a pool that begins at `base`. The memory is not read. Returns
/// invalid_argument (layer) when the layer does not exist.
Result<KvLayerView> layer_view(const PoolShape& pool, std::byte* base, std::int32_t layer) noexcept;

}  // namespace kvarena
