#pragma once

/// @file
/// The kernel of scrub.h: a thread block fills blockDim.x * kPieceUnits units of one block of
/// one plane.

#include "kernels/common/block_pieces.h"

namespace kvarena::kernels {

template <class Unit>
__global__ void __launch_bounds__(kPieceThreads)
    scrub_block_pieces(const __grid_constant__ ScrubParams p, Unit value) {
  const std::int64_t step = std::int64_t{blockDim.x} * sizeof(Unit);
  const std::int64_t first = std::int64_t{blockIdx.x} * kPieceUnits * step +
                             static_cast<std::int64_t>(threadIdx.x * sizeof(Unit));
  std::byte* base = p.base + blockIdx.z * p.plane_stride;
  for (std::int64_t i = blockIdx.y; i < p.num_scrubbed; i += gridDim.y) {
    const std::int64_t block = p.blocks[i].value;
    if (block < 0 || block >= p.num_blocks) continue;
    std::byte* to = base + block * p.block_stride;
#pragma unroll
    for (int u = 0; u < kPieceUnits; ++u) {
      if (first + u * step < p.bytes) __stcs(reinterpret_cast<Unit*>(to + first + u * step), value);
    }
  }
}

}  // namespace kvarena::kernels
