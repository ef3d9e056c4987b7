#pragma once

/// @file
/// The columns kernel. A thread block has a producer warp, which copies K and V, and one or two
/// warpgroups of consumers. For K and V of fp8, a warpgroup of converters takes the place of the
/// producer. The tokens of a slab are the columns of the products of S, and 64 query columns of a
/// KV head are their rows. The pool's chunked order is the order of the operands. The schedule
/// gives each thread block its segments, so there is no counter and no order to compute.

#include "kernels/columns/columns_config.cuh"
#include "kernels/columns/columns_consumer.cuh"
#include "kernels/columns/columns_converter.cuh"
#include "kernels/columns/columns_producer.cuh"

namespace kvarena::kernels::columns {

/// Computes the segments of a thread block.
template <class C>
__global__ void __launch_bounds__(C::kThreads, C::kPerSm)
    columns_kernel(const __grid_constant__ Launch launch) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<Shared<C>*>(memory);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32 - 4;
  if (thread < C::kStages) {
    init_barrier(&shared.key_full[thread], C::kKeyArrivals);
    init_barrier(&shared.key_empty[thread], C::kWarpgroups);
    init_barrier(&shared.value_full[thread], C::kValueArrivals);
    init_barrier(&shared.value_empty[thread], 128 * C::kWarpgroups);
  }
  fence_barrier_init();
  if (warp < 0) {
    give_registers<C::kProducerRegisters>();
    if constexpr (C::kIsFp8) {
      Converter<C>{launch, shared, warp + 4, PieceOrder<C::kDim>(thread % 32)}.run(
          load_words(launch, static_cast<int>(blockIdx.x), thread % 32));
    } else {
      if (warp != -4) return;
      Producer<C>{launch, shared, thread % 32}.run(
          load_words(launch, static_cast<int>(blockIdx.x), thread % 32));
    }
    return;
  }
  take_registers<C::kConsumerRegisters>();
  Consumer<C>{launch, shared, warp, thread % 32}.run(
      load_words(launch, static_cast<int>(blockIdx.x), thread % 32));
#else
  __trap();
#endif
}

}  // namespace kvarena::kernels::columns
