#pragma once

/// @file
/// The addresses of K and V of a layer in a pool, computed from its layout: in an Arena, or in
/// memory of an engine that has a pool of its own. Pure functions; any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/base/views.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// The facts that decide where a pool's bytes lie. The layout is borrowed.
struct PoolShape {
  const KvLayout& layout;                      ///< planes and block size
  BlockOrder order = BlockOrder::block_major;  ///< which bytes lie together
  std::int64_t num_blocks = 0;                 ///< blocks in the pool
};

/// Returns K and V of one layer of a pool that begins at `base`, in memory of
/// layout.pool_bytes(num_blocks) bytes that any device can have. The memory is not read. Returns
/// invalid_argument (layer) when the layer does not exist, (pointer) for nullptr, (alignment) for
/// a base that is no multiple of KvLayout::kPlaneAlignment, or what KvLayout::pool_bytes returns.
KVARENA_EXPORT Result<KvLayerView> layer_view(const PoolShape& pool, std::byte* base,
                                              std::int32_t layer) noexcept;

}  // namespace kvarena
