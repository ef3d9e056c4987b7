#pragma once

/// @file
/// Makes rows of hopper_instances.h. Included by the sources that compile instances.

#include "kernels/prefill/hopper_instances.h"
#include "kernels/prefill/prefill_hopper.cuh"

namespace kvarena::kernels::prefill {

template <class Tile>
inline constinit std::atomic<std::uint64_t> prepared_devices{0};

/// Returns the row of an instance.
template <class T, DType kType, int D, int N, bool kHasWindow, bool kHasCap>
constexpr HopperInstance hopper_row() noexcept {
  using Tile = HopperTile<T, T, D, N, kHasWindow, kHasCap>;
  static_assert(sizeof(HopperShared<Tile>) <= 227 * 1024);
  return {.dtype = kType,
          .kv_dtype = kType,
          .head_dim = D,
          .tile_tokens = N,
          .has_window = kHasWindow,
          .has_cap = kHasCap,
          .threads = Tile::kThreads,
          .shared_bytes = static_cast<int>(sizeof(HopperShared<Tile>)),
          .kernel = prefill_hopper<Tile>,
          .devices = &prepared_devices<Tile>};
}

}  // namespace kvarena::kernels::prefill
