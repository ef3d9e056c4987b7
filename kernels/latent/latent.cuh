#pragma once

/// @file
/// Attention over latents (MLA, arXiv 2405.04434) on Hopper: all query heads read one latent a
/// token, in `chunked` order or in the format latent_fp8, and its leading elements are V. It is a
/// kind of the columns kernel (columns.h), with its schedule, workspace and parameters. Results
/// differ from those of other kernels by rounding alone; the same inputs give the same bits.

#include "kernels/common/grid_dependency.cuh"
#include "kernels/latent/latent_combine.cuh"
#include "kernels/latent/latent_config.cuh"
#include "kernels/latent/latent_converter.cuh"
#include "kernels/latent/latent_halves.cuh"
#include "kernels/latent/latent_logits.cuh"
#include "kernels/latent/latent_packed_logits.cuh"
#include "kernels/latent/latent_packed_values.cuh"
#include "kernels/latent/latent_producer.cuh"
#include "kernels/latent/latent_teams.cuh"
#include "kernels/latent/latent_values.cuh"

namespace kvarena::kernels::latent {

/// Gives or takes registers: a thread has about 2^16 / kThreads at the launch.
template <int kRegisters, int kThreads>
__device__ __forceinline__ void set_registers() {
  if constexpr (kRegisters * kThreads < 1 << 16) {
    give_registers<kRegisters>();
  } else {
    take_registers<kRegisters>();
  }
}

/// Sets up the barriers of a thread block. One thread calls it.
template <class C>
__device__ __forceinline__ void init_barriers(Shared<C>& shared) {
  // Logits and values need a tile, or both halves.
  constexpr int kReaders = (C::kHalves ? 0 : 1) + kValueWarps * kWarpArrivals;
  for (int i = 0; i < C::kStages; ++i) {
    init_barrier(&shared.latents_full[i], C::kConverts ? C::kConverters : kWarpArrivals);
    for (Barrier& tile : shared.tile_empty[i]) init_barrier(&tile, kReaders);
  }
  for (Barrier& full : shared.weights_full) init_barrier(&full, 128);
  if constexpr (C::kHalves) {
    init_barrier(&shared.meeting, 256);
    for (auto& stage : shared.pool_full) {
      for (Barrier& tile : stage) init_barrier(&tile, 1);
    }
  } else {
    for (Barrier& empty : shared.weights_empty) init_barrier(&empty, kValueWarps * kWarpArrivals);
    if constexpr (C::kPacked) {
      init_barrier(&shared.meeting, C::kLogitsThreads);
      for (Barrier& full : shared.maxima_full) init_barrier(&full, 128);
    }
    if constexpr (C::kConverts) {
      for (Barrier& full : shared.ring_full) init_barrier(&full, 1);
      for (Barrier& empty : shared.ring_empty) init_barrier(&empty, 4 * kWarpArrivals);
    }
    init_barrier(&shared.result_full, 128);
    init_barrier(&shared.result_empty, kValueWarps * kWarpArrivals);
  }
  fence_barrier_init();
}

/// Computes the segments of a thread block.
template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    latent_kernel(const __grid_constant__ Launch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<Shared<C>*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int words = columns::load_words(launch, static_cast<int>(blockIdx.x), thread % 32);
  if (thread == 0) init_barriers(shared);
  __syncthreads();
  constexpr int kFirstConverter = C::kThreads / 32 - 4;
  constexpr int kFirstValues = C::kThreads / 32 - kValueWarps;
  if (warp < 4) {
    give_registers<C::kProducerRegisters>();
    if (warp == 0) {
      Producer<C>{launch, shared, thread % 32}.run(words);
    } else if constexpr (C::kTeams) {
      TeamConverter<C, 3>{launch, shared, warp - 1, thread % 32}.run(words);
    }
  } else if (C::kConverts && warp >= kFirstConverter) {
    if constexpr (C::kConverts) {
      set_registers<C::kConverterRegisters, C::kThreads>();
      if constexpr (C::kTeams) {
        TeamConverter<C, 4>{launch, shared, warp - kFirstConverter, thread % 32}.run(words);
      } else {
        Converter<C>{launch, shared, warp - kFirstConverter, thread % 32}.run(words);
      }
    }
  } else if constexpr (C::kHalves) {
    take_registers<C::kHalfRegisters>();
    const int half = __reduce_max_sync(~0U, warp / 4 - 1);
    Half<C>{launch, shared, warp - 4, thread % 32, half}.run(words);
  } else if (C::kPacked && warp < kFirstValues) {
    if constexpr (C::kPacked) {
      set_registers<C::kLogitsRegisters, C::kThreads>();
      PackedLogits<C> logits{{launch, shared, warp % 4, thread % 32}};
      logits.warpgroup = __reduce_max_sync(~0U, warp / 4 - 1);
      run_logits(logits, words);
    }
  } else if constexpr (C::kPacked) {
    set_registers<C::kValueRegisters, C::kThreads>();
    PackedValues<C> values{{launch, shared, warp - kFirstValues, thread % 32}};
    run_values(values, words);
  } else if (warp < 8) {
    give_registers<C::kLogitsRegisters>();
    Logits<C> logits{launch, shared, warp - 4, thread % 32};
    run_logits(logits, words);
  } else {
    take_registers<C::kValueRegisters>();
    Values<C> values{launch, shared, warp - 8, thread % 32};
    run_values(values, words);
  }
#else
  __trap();
#endif
}

}  // namespace kvarena::kernels::latent
