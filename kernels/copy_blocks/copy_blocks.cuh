#pragma once

/// @file
/// The kernel of copy_blocks.h. A thread block copies blockDim.x * kPieceUnits units of one block
/// in one plane. A thread issues all of its loads before its stores.

#include "kernels/common/block_pieces.h"
#include "kernels/common/vector_io.cuh"

namespace kvarena::kernels {

/// Reads one unit: 4 or 16 bytes.
template <class Unit>
__device__ __forceinline__ Unit read_unit(const std::byte* from) {
  if constexpr (sizeof(Unit) == 16) {
    return load_once(from);
  } else {
    return *reinterpret_cast<const Unit*>(from);
  }
}

/// Copies the pieces of all blocks of the list.
template <class Unit>
__global__ void __launch_bounds__(kPieceThreads)
    copy_block_pieces(const __grid_constant__ CopyBlocksParams p) {
  const std::int64_t step = std::int64_t{blockDim.x} * sizeof(Unit);
  const std::int64_t first = std::int64_t{blockIdx.x} * kPieceUnits * step +
                             static_cast<std::int64_t>(threadIdx.x * sizeof(Unit));
  std::byte* base = p.base + blockIdx.z * p.plane_stride;
  for (std::int64_t i = blockIdx.y; i < p.num_copies; i += gridDim.y) {
    const std::int64_t source = p.copies[i].source.value;
    const std::int64_t target = p.copies[i].target.value;
    if (source < 0 || source >= p.num_blocks || target < 0 || target >= p.num_blocks) continue;
    const std::byte* from = base + source * p.block_stride;
    std::byte* to = base + target * p.block_stride;
    Unit units[kPieceUnits];
#pragma unroll
    for (int u = 0; u < kPieceUnits; ++u) {
      if (first + u * step < p.bytes) units[u] = read_unit<Unit>(from + first + u * step);
    }
#pragma unroll
    for (int u = 0; u < kPieceUnits; ++u) {
      if (first + u * step < p.bytes) {
        __stcs(reinterpret_cast<Unit*>(to + first + u * step), units[u]);
      }
    }
  }
}

}  // namespace kvarena::kernels
