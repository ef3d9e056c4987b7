#pragma once

/// @file
/// The Hopper kernel of prefill.h. Thread blocks stay on their multiprocessor and take items until
/// none is left. hopper_tile.cuh says what an item is.

#include "kernels/common/grid_dependency.cuh"
#include "kernels/prefill/hopper_consumer.cuh"
#include "kernels/prefill/hopper_convert.cuh"
#include "kernels/prefill/hopper_copies.cuh"
#include "kernels/prefill/hopper_items.cuh"

namespace kvarena::kernels::prefill {

/// Sets up the barriers. One thread calls it.
template <class Tile>
__device__ void init_shared(HopperShared<Tile>& shared) {
  constexpr int kConsumerWarps = 8;
  constexpr int kCopiers = Tile::kIsFp8 && !Tile::kSplitsQuery ? 0 : 1;
  constexpr int kWriters = Tile::kIsFp8 ? Tile::kConverterWarps * kWarpArrivals : 1;
  constexpr int kItemReaders =
      kCopiers + Tile::kConverterWarps + kConsumerWarps + (Tile::kPrefetchesQuery ? 1 : 0);
  for (int i = 0; i < Tile::kKeyStages; ++i) {
    init_barrier(&shared.keys_full[i], kCopiers != 0 ? 1 : kWriters);
    init_barrier(&shared.keys_empty[i], 2);
  }
  for (int i = 0; i < Tile::kStages; ++i) {
    init_barrier(&shared.values_full[i], kWriters);
    init_barrier(&shared.values_empty[i], 2);
  }
  for (int i = 0; i < kItemSlots; ++i) {
    init_barrier(&shared.item_full[i], kWarpArrivals);
    init_barrier(&shared.item_empty[i], kItemReaders * kWarpArrivals);
  }
  shared.tiles_copied = 0;
  fence_barrier_init();
}

/// A converting warp, counted from 0.
template <class Tile>
__device__ __forceinline__ void convert(const PrefillParams& p, const HopperLaunch& launch,
                                        HopperShared<Tile>& shared, int warp, int lane) {
  if constexpr (Tile::kIsFp8) Converter<Tile>(p, launch, shared, warp, lane).run();
}

/// The warps that are no consumers, counted from 0. Warp 3 gives out items. With fp8 K and V the
/// last of the others convert.
template <class Tile>
__device__ __forceinline__ void produce(const PrefillParams& p, const HopperLaunch& launch,
                                        HopperShared<Tile>& shared, int warp, int lane) {
  constexpr int kPrefetcher = !Tile::kIsFp8 || Tile::kHasOwnConverters ? 1 : 7;
  if (warp == 3) {
    ItemGiver<Tile>{p, launch, shared, lane}.run();
  } else if (warp == kPrefetcher && Tile::kPrefetchesQuery) {
    prefetch_queries(p, launch, shared, lane);
  } else if constexpr (Tile::kIsFp8 && !Tile::kSplitsQuery) {
    const int converter = warp < 3 ? warp : warp - 1;
    if (!Tile::kHasOwnConverters && converter < Tile::kConverterWarps) {
      convert(p, launch, shared, converter, lane);
    }
  } else if (warp == 0) {
    Copier<Tile>{p, launch, shared, lane}.run();
  }
}

template <class Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    prefill_hopper(const __grid_constant__ PrefillParams p,
                   const __grid_constant__ HopperLaunch launch) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<HopperShared<Tile>*>(memory);
  if (threadIdx.x == 0) init_shared(shared);
  __syncthreads();
  wait_for_previous_kernel();
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (Tile::kHasOwnConverters && warpgroup == 3) {
    give_registers<Tile::kConverterRegisters>();
    convert(p, launch, shared, warp - 12, lane);
  } else if (warpgroup == 0 || warpgroup == 3) {
    give_registers<Tile::kProducerRegisters>();
    produce(p, launch, shared, warp < 4 ? warp : warp - 8, lane);
  } else {
    take_registers<Tile::kConsumerRegisters>();
    Consumer<Tile> consumer(p, launch, shared, warpgroup - 1, warp & 3, lane);
    consumer.run();
  }
#else
  __trap();
#endif
}

}  // namespace kvarena::kernels::prefill
