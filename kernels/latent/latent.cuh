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
#include "kernels/latent/latent_logits.cuh"
#include "kernels/latent/latent_producer.cuh"
#include "kernels/latent/latent_values.cuh"

namespace kvarena::kernels::latent {

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
  if (thread == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      init_barrier(&shared.latents_full[i], C::kConverts ? 128 : 1);
      for (Barrier& tile : shared.tile_empty[i]) init_barrier(&tile, 1 + kValueWarps);
    }
    for (int i = 0; i < C::kWeightBuffers; ++i) {
      init_barrier(&shared.weights_full[i], 128);
      init_barrier(&shared.weights_empty[i], kValueWarps);
    }
    for (int i = 0; C::kConverts && i < C::kPoolTiles; ++i) {
      init_barrier(&shared.ring_full[i], 1);
      init_barrier(&shared.ring_empty[i], 4);
    }
    init_barrier(&shared.result_full, 128);
    init_barrier(&shared.result_empty, kValueWarps);
    fence_barrier_init();
  }
  __syncthreads();
  if (warp < 4) {
    give_registers<C::kProducerRegisters>();
    if (warp == 0) Producer<C>{launch, shared, thread % 32}.run(words);
  } else if (warp < 8) {
    give_registers<C::kLogitsRegisters>();
    Logits<C>{launch, shared, warp - 4, thread % 32}.run(words);
  } else if (!C::kConverts || warp < 16) {
    take_registers<C::kValueRegisters>();
    Values<C>{launch, shared, warp - 8, thread % 32}.run(words);
  } else {
    if constexpr (C::kConverts) {
      take_registers<C::kConverterRegisters>();
      Converter<C>{launch, shared, warp - 16, thread % 32}.run(words);
    }
  }
#else
  __trap();
#endif
}

}  // namespace kvarena::kernels::latent
