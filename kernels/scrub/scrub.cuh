#pragma once

/// @file
/// The kernel of scrub.h. A thread block has blockDim.x * kPieceUnits units of one entry's block in
/// one plane. x counts pieces, y entries, and z planes, with K and V of a layer side by side. Units
/// are numbered by head, token, and place within the token. Units past the last head are padding.

#include "kernels/common/block_pieces.h"
#include "kernels/common/vector_io.cuh"
#include "kernels/scrub/scrub.h"

#include "kvarena/base/tile_order.hpp"

namespace kvarena::kernels {

/// A launch's parameters.
struct ScrubBatch {
  ScrubParams params;  ///< the list in it is not read
  std::int32_t count;
  BlockScrub scrubs[kMaxScrubs];
};
static_assert(sizeof(ScrubBatch) <= 4096);

/// The place of a unit in its plane's block, and the token that it belongs to.
struct ScrubUnit {
  std::int64_t offset;  ///< bytes
  std::int32_t token;   ///< block_size or more: padding
};

/// Finds the place and the token of unit `index`.
template <class Unit>
__device__ __forceinline__ ScrubUnit unit_at(const PlaneView& plane, std::int32_t block_size,
                                             std::int64_t index) {
  const auto a_token = static_cast<std::int32_t>(plane.token_stride / sizeof(Unit));
  const std::int64_t row = index / a_token;  // head * block_size + token
  const auto head = static_cast<std::int32_t>(row / block_size);
  const std::int64_t straight = index * static_cast<std::int64_t>(sizeof(Unit));
  if (head >= plane.num_heads) return {straight, block_size};
  const auto token = static_cast<std::int32_t>(row % block_size);
  if (plane.tile_order == TileOrder::rows) return {straight, token};
  const auto bytes = static_cast<std::int32_t>(plane.token_stride / plane.head_dim);
  const auto at =
      static_cast<std::int32_t>(index % a_token) * static_cast<std::int32_t>(sizeof(Unit));
  return {element_offset(plane, bytes, 0, head, token, at / bytes) + at % bytes, token};
}

/// Scrubs a piece of an entry that keeps tokens: copies kept tokens when source and target differ,
/// and zeros the rest.
template <class Unit>
__device__ __forceinline__ void scrub_behind_tokens(const PlaneView& plane, std::int32_t block_size,
                                                    std::int64_t num_units, const BlockScrub& scrub,
                                                    const std::byte* from, std::byte* to,
                                                    std::int64_t first) {
  for (int u = 0; u < kPieceUnits; ++u) {
    const std::int64_t index = first + std::int64_t{u} * blockDim.x;
    if (index >= num_units) return;
    const ScrubUnit unit = unit_at<Unit>(plane, block_size, index);
    auto* target = reinterpret_cast<Unit*>(to + unit.offset);
    if (unit.token >= scrub.kept_tokens) {
      *target = Unit{};
    } else if (from != to) {
      *target = *reinterpret_cast<const Unit*>(from + unit.offset);
    }
  }
}

/// Scrubs the pieces of all entries of the batch.
template <class Unit>
__global__ void __launch_bounds__(kPieceThreads)
    scrub_block_pieces(const __grid_constant__ ScrubBatch batch) {
  const ScrubParams& p = batch.params;
  const std::int32_t planes_a_layer = p.value_bytes > 0 ? 2 : 1;
  const std::int32_t layer = static_cast<std::int32_t>(blockIdx.z) / planes_a_layer;
  const bool is_key = static_cast<std::int32_t>(blockIdx.z) % planes_a_layer == 0;
  const PlaneView& plane = is_key ? p.kv.key : p.kv.value;
  const std::int64_t bytes = is_key ? p.key_bytes : p.value_bytes;
  const std::int64_t num_units = bytes / static_cast<std::int64_t>(sizeof(Unit));
  const BlockScrub scrub = batch.scrubs[blockIdx.y];
  std::byte* base = plane.base + layer * p.layer_stride;
  std::byte* to = base + scrub.target.value * plane.block_stride;
  const std::int64_t first = std::int64_t{blockIdx.x} * kPieceUnits * blockDim.x + threadIdx.x;
  if (scrub.kept_tokens > 0) {
    const std::byte* from = base + scrub.source.value * plane.block_stride;
    scrub_behind_tokens<Unit>(plane, p.kv.block_size, num_units, scrub, from, to, first);
    return;
  }
#pragma unroll
  for (int u = 0; u < kPieceUnits; ++u) {
    const std::int64_t index = first + std::int64_t{u} * blockDim.x;
    if (index < num_units) __stcs(reinterpret_cast<Unit*>(to) + index, Unit{});
  }
}

}  // namespace kvarena::kernels
