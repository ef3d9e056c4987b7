#pragma once

/// @file
/// K and V of a layer in a pool, from its layout. Pure arithmetic on addresses.

#include "kvarena/base/layout.hpp"
#include "kvarena/base/views.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// What decides where a pool's bytes lie. The layout is borrowed.
struct PoolShape {
  const KvLayout& layout;
  BlockOrder order = BlockOrder::block_major;
  std::int64_t num_blocks = 0;
};

/// K and V of one layer of a pool that begins at `base`, which is not read. Returns
/// invalid_argument (layer) when there is none.
Result<KvLayerView> layer_view(const PoolShape& pool, std::byte* base, std::int32_t layer) noexcept;

}  // namespace kvarena
