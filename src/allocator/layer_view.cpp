#include "kvarena/allocator/layer_view.hpp"

#include <cstdint>

namespace kvarena {
namespace {

/// The view of K or of V: one plane.
PlaneView plane_view(const PoolShape& pool, std::byte* base, std::int32_t plane) noexcept {
  const KvLayout& layout = pool.layout;
  const PlaneSpec& spec = layout.planes()[static_cast<std::size_t>(plane)];
  return {.base = base + layout.plane_offset(plane, pool.order, pool.num_blocks),
          .block_stride = layout.block_stride(plane, pool.order),
          .head_stride = layout.head_stride(plane),
          .token_stride = layout.token_stride(plane),
          .num_heads = spec.num_heads,
          .head_dim = spec.head_dim,
          .dtype = spec.dtype,
          .tile_order = layout.tile_order_of(plane),
          .scales_offset = layout.scales_offset(plane)};
}

/// Checks the memory of a pool.
Status check_base(const PoolShape& pool, const std::byte* base) noexcept {
  if (base == nullptr) return invalid_argument(Resource::pointer, 0, 1, 1);
  constexpr auto kAlignment = static_cast<std::uintptr_t>(KvLayout::kPlaneAlignment);
  const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(base) % kAlignment;
  if (past != 0)
    return invalid_argument(Resource::alignment, static_cast<std::int64_t>(past), 0, 0);
  return pool.layout.pool_bytes(pool.num_blocks).status();
}

}  // namespace

Result<KvLayerView> layer_view(const PoolShape& pool, std::byte* base,
                               std::int32_t layer) noexcept {
  const std::int32_t key = pool.layout.plane_of(layer, PlaneKind::key);
  const std::int32_t value = pool.layout.plane_of(layer, PlaneKind::value);
  if (key < 0 || value < 0) {
    return invalid_argument(Resource::layer, layer, 0, pool.layout.num_layers() - 1);
  }
  if (Status s = check_base(pool, base); !s) return s;
  return KvLayerView{.key = plane_view(pool, base, key),
                     .value = plane_view(pool, base, value),
                     .block_size = pool.layout.block_size(),
                     .num_blocks = pool.num_blocks};
}

}  // namespace kvarena
