#pragma once

/// @file
/// The kernel of copy_states.h. A slot is cut into pieces of blockDim.x * kStateUnits units of 16
/// bytes. As many thread blocks as the GPU runs at once take the pieces of all copies in turn. A
/// thread issues all loads of a piece before its stores.

#include "kernels/common/vector_io.cuh"
#include "kernels/copy_states/copy_states.h"

namespace kvarena::kernels {

inline constexpr int kStateThreads = 1024;  ///< most threads of a thread block
inline constexpr int kStateUnits = 2;       ///< units that a thread moves at once

/// Copies or clears the pieces of all copies; a slot has `pieces` of them.
__global__ void __launch_bounds__(kStateThreads, 2)
    copy_state_pieces(const __grid_constant__ CopyStatesParams p, std::uint32_t pieces) {
  const auto count = static_cast<std::uint32_t>(
      min(max(std::int64_t{*p.num_copies}, std::int64_t{0}), p.max_copies));
  const std::int64_t step = std::int64_t{blockDim.x} * static_cast<std::int64_t>(sizeof(uint4));
  for (std::uint32_t item = blockIdx.x; item < count * pieces; item += gridDim.x) {
    const std::uint32_t number = item / pieces;
    const std::int64_t first = std::int64_t{item - number * pieces} * kStateUnits * step +
                               std::int64_t{threadIdx.x} * static_cast<int>(sizeof(uint4));
    const std::int64_t source = p.copies[number].source.value;
    const std::int64_t target = p.copies[number].target.value;
    if (source >= p.num_slots || target < 0 || target >= p.num_slots) continue;
    const std::byte* const from = p.base + source * p.slot_stride;
    std::byte* const to = p.base + target * p.slot_stride;
    uint4 units[kStateUnits] = {};
#pragma unroll
    for (int u = 0; u < kStateUnits; ++u) {
      if (source >= 0 && first + u * step < p.bytes) units[u] = load_once(from + first + u * step);
    }
#pragma unroll
    for (int u = 0; u < kStateUnits; ++u) {
      if (first + u * step < p.bytes) store_once(to + first + u * step, units[u]);
    }
  }
}

}  // namespace kvarena::kernels
