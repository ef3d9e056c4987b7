#pragma once

/// @file
/// The order of K and V that the Hopper kernel of prefill.h reads. Needs no CUDA.

#include "kernels/common/launch_checks.h"

namespace kvarena::kernels {

/// Returns whether K and V lie as the Hopper kernel of prefill.h reads them: in chunked order, or
/// dense [block_size, head_dim] where a token of fp8 has no chunked order.
constexpr bool has_hopper_order(const KvLayerView& kv) noexcept {
  const auto is_read = [&](const PlaneView& plane) {
    const bool has_chunks = has_chunked_order(plane.dtype, plane.head_dim);
    if (plane.tile_order == TileOrder::chunked) return has_chunks && has_own_chunks(plane);
    return plane.dtype == DType::fp8_e4m3 && !has_chunks && plane.token_stride == plane.head_dim;
  };
  return is_read(kv.key) && is_read(kv.value) && kv.value.tile_order == kv.key.tile_order &&
         kv.value.dtype == kv.key.dtype && kv.value.head_dim == kv.key.head_dim &&
         kv.block_size % kTileTokens == 0 && !has_own_scales(kv);
}

}  // namespace kvarena::kernels
