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
  constexpr int kConverterWarps = Tile::kIsFp8 ? 4 : 0;
  constexpr int kItemReaders =
      1 + kConsumerWarps + kConverterWarps + (Tile::kHasSharedQuery ? 1 : 0);
  constexpr int kWriters = Tile::kIsFp8 ? kConverterWarps : 1;
  for (int i = 0; i < Tile::kStages; ++i) {
    init_barrier(&shared.keys_full[i], kWriters);
    init_barrier(&shared.values_full[i], kWriters);
    init_barrier(&shared.keys_empty[i], 2);
    init_barrier(&shared.values_empty[i], 2);
  }
  for (int i = 0; i < Tile::kRawStages && Tile::kIsFp8; ++i) {
    init_barrier(&shared.raw_keys_full[i], 1);
    init_barrier(&shared.raw_values_full[i], 1);
    init_barrier(&shared.raw_keys_empty[i], kConverterWarps);
    init_barrier(&shared.raw_values_empty[i], kConverterWarps);
  }
  for (int i = 0; i < kItemSlots; ++i) {
    init_barrier(&shared.item_full[i], 1);
    init_barrier(&shared.item_empty[i], kItemReaders);
  }
  shared.tiles_copied = 0;
  fence_barrier_init();
}

/// The producer warpgroup. Two or three of its warps work.
template <class Tile>
__device__ __forceinline__ void produce(const PrefillParams& p, const HopperLaunch& launch,
                                        HopperShared<Tile>& shared) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (warp == 0) {
    Copier<Tile>{p, launch, shared, lane}.run();
  } else if (warp == 1 && Tile::kHasSharedQuery) {
    prefetch_queries(p, launch, shared, lane);
  } else if (warp == 3) {
    ItemGiver<Tile>{p, launch, shared, lane}.run();
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
  if (warpgroup == 0) {
    give_registers<Tile::kProducerRegisters>();
    produce(p, launch, shared);
  } else if (Tile::kIsFp8 && warpgroup == 3) {
    if constexpr (Tile::kIsFp8) {
      give_registers<Tile::kConverterRegisters>();
      Converter<Tile>{shared, static_cast<int>(threadIdx.x) / 32 & 3,
                      static_cast<int>(threadIdx.x) % 32}
          .run();
    }
  } else {
    take_registers<Tile::kConsumerRegisters>();
    Consumer<Tile> consumer(p, launch, shared, warpgroup - 1,
                            static_cast<int>(threadIdx.x) / 32 & 3,
                            static_cast<int>(threadIdx.x) % 32);
    consumer.run();
  }
#else
  __trap();
#endif
}

}  // namespace kvarena::kernels::prefill
