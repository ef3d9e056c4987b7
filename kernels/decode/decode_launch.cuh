#pragma once

/// @file
/// The launch of an instance of the decode kernel. Each small source file compiles the instances of
/// one type of q, K and V; decode.cu has the table.

#include "kernels/common/launch_kernel.h"
#include "kernels/common/load_kernel.h"
#include "kernels/decode/decode.cuh"
#include "kernels/decode/decode_launch.h"

namespace kvarena::kernels::decode {

/// The kernel of an instance, for what a launch knows.
template <class T, class S, int D, int W, int PerSm, int kCluster, int kOperands, bool kOneTile,
          bool kOneToken>
constexpr auto kKernel =
    decode_kernel<T, S, D, W, PerSm, LaunchMode<kOneTile, kOneToken, kOperands, kCluster>>;

template <class T, class S, int D, int W, int PerSm, int kCluster, int kOperands>
cudaError_t launch_instance(const DecodeParams& params, const DecodeWorkspace& workspace, int turns,
                            bool overlap, cudaStream_t stream) {
  const auto tiles = static_cast<std::uint32_t>(params.block_size / kTileTokens);
  const DecodeConstants constants{tiles, ((std::uint64_t{1} << 32) + tiles - 1) / tiles};
  const bool has_one_token = params.max_q_len == 1;
  const auto kernel =
      has_one_token ? (tiles == 1 ? kKernel<T, S, D, W, PerSm, kCluster, kOperands, true, true>
                                  : kKernel<T, S, D, W, PerSm, kCluster, kOperands, false, true>)
                    : (tiles == 1 ? kKernel<T, S, D, W, PerSm, kCluster, kOperands, true, false>
                                  : kKernel<T, S, D, W, PerSm, kCluster, kOperands, false, false>);
  constexpr std::size_t kBytes = kDynamicBytes<D, W, kOperands>;
  if constexpr (kBytes > 0) {
    const cudaError_t error = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(kBytes));
    if (error != cudaSuccess) return error;
  }
  const LaunchShape shape{dim3(static_cast<unsigned>(turns * kCluster)), dim3(W * 32), kBytes,
                          kCluster};
  return launch_kernel(kernel, shape, overlap, stream, params, workspace, constants);
}

template <class T, class S, int D, int W, int PerSm, int kCluster, int kOperands>
Status load_instance() noexcept {
  return load_kernels(kKernel<T, S, D, W, PerSm, kCluster, kOperands, true, true>,
                      kKernel<T, S, D, W, PerSm, kCluster, kOperands, false, true>,
                      kKernel<T, S, D, W, PerSm, kCluster, kOperands, true, false>,
                      kKernel<T, S, D, W, PerSm, kCluster, kOperands, false, false>);
}

}  // namespace kvarena::kernels::decode

/// Compiles an instance, in the namespace decode.
#define KVARENA_COMPILE_DECODE(T, S, D, W, PerSm, kCluster, kOperands)          \
  template cudaError_t launch_instance<T, S, D, W, PerSm, kCluster, kOperands>( \
      const DecodeParams&, const DecodeWorkspace&, int, bool, cudaStream_t);    \
  template Status load_instance<T, S, D, W, PerSm, kCluster, kOperands>() noexcept;
