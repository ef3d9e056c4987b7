#pragma once

/// @file
/// Makes rows of hopper_instances.h. Included by the sources that compile instances.

#include "kernels/prefill/hopper_instances.h"
#include "kernels/prefill/prefill_hopper.cuh"

#include <array>

namespace kvarena::kernels::prefill {

/// Bit i: device i has been told of the shared memory of an instance.
template <class Tile>
inline constinit std::atomic<std::uint64_t> prepared_devices{0};

template <class T>
inline constexpr DType kTypeOf = DType::bf16;
template <>
inline constexpr DType kTypeOf<__half> = DType::f16;
template <>
inline constexpr DType kTypeOf<__nv_fp8_e4m3> = DType::fp8_e4m3;

/// Returns the row of an instance.
template <class Tile>
constexpr HopperInstance hopper_row() noexcept {
  static_assert(sizeof(HopperShared<Tile>) <= 227 * 1024);
  return {.dtype = kTypeOf<typename Tile::T>,
          .kv_dtype = kTypeOf<typename Tile::S>,
          .head_dim = Tile::D,
          .tile_tokens = Tile::N,
          .has_window = Tile::kHasWindow,
          .has_cap = Tile::kHasCap,
          .threads = Tile::kThreads,
          .shared_bytes = static_cast<int>(sizeof(HopperShared<Tile>)),
          .kernel = prefill_hopper<Tile>,
          .devices = &prepared_devices<Tile>};
}

/// Returns the rows of the variants: plain, with a window, and with a soft cap and any window.
template <class T, class S, int D, int N, bool kSplitsQuery = false>
constexpr std::array<HopperInstance, 3> hopper_variants() noexcept {
  return {hopper_row<HopperTile<T, S, D, N, false, false, kSplitsQuery>>(),
          hopper_row<HopperTile<T, S, D, N, true, false, kSplitsQuery>>(),
          hopper_row<HopperTile<T, S, D, N, true, true, kSplitsQuery>>()};
}

/// Returns the rows of all head_dims for q, K and V of one type. Where two tiles serve a head_dim,
/// the first is for rows of fewer query tokens.
template <class T>
constexpr auto hopper_dims() noexcept {
  return std::array{hopper_variants<T, T, 64, 192>(),  hopper_variants<T, T, 80, 144>(),
                    hopper_variants<T, T, 96, 128>(),  hopper_variants<T, T, 128, 128>(),
                    hopper_variants<T, T, 128, 144>(), hopper_variants<T, T, 192, 80>(),
                    hopper_variants<T, T, 256, 80>()};
}

/// Returns the rows of head_dims up to 128 for K and V of fp8. `T` is the type of q and out. Where
/// there are as many converting warps as 16-token tiles, none waits for another.
template <class T>
constexpr auto hopper_fp8_dims() noexcept {
  using S = __nv_fp8_e4m3;
  return std::array{hopper_variants<T, S, 64, 144>(), hopper_variants<T, S, 80, 112>(),
                    hopper_variants<T, S, 96, 112>(), hopper_variants<T, S, 128, 112>()};
}

/// Returns the rows for rows of many query tokens, which split Q. They come behind those of
/// hopper_fp8_dims.
constexpr auto hopper_fp8_long_dims() noexcept {
  using T = __nv_bfloat16;
  using S = __nv_fp8_e4m3;
  return std::array{hopper_variants<T, S, 64, 144, true>(), hopper_variants<T, S, 96, 128, true>(),
                    hopper_variants<T, S, 128, 112, true>()};
}

/// Returns the rows of larger head_dims.
template <class T>
constexpr auto hopper_fp8_wide_dims() noexcept {
  using S = __nv_fp8_e4m3;
  return std::array{hopper_variants<T, S, 192, 96>(), hopper_variants<T, S, 256, 64>()};
}

/// Returns the rows of several head_dims in one array.
template <std::size_t kCount>
constexpr std::array<HopperInstance, 3 * kCount> join(
    const std::array<std::array<HopperInstance, 3>, kCount>& dims) noexcept {
  std::array<HopperInstance, 3 * kCount> all{};
  for (std::size_t i = 0; i < 3 * kCount; ++i) all[i] = dims[i / 3][i % 3];
  return all;
}

}  // namespace kvarena::kernels::prefill
