#pragma once

/// @file
/// The launch of an instance of the columns kernel. Each small source file compiles the instances
/// of one head_dim; columns.cu has the table.

#include "kernels/columns/columns.cuh"
#include "kernels/common/load_kernel.h"

namespace kvarena::kernels::columns {

/// Launches one variant of an instance.
template <class C>
cudaError_t launch_variant(const Launch& launch, bool overlap, cudaStream_t stream) {
  static_assert(sizeof(Shared<C>) * C::kPerSm <= 226 * 1024);
  constexpr int kBytes = static_cast<int>(sizeof(Shared<C>));
  const auto kernel = columns_kernel<C>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = overlap ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(launch.workspace.blocks));
  config.blockDim = dim3(C::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, launch);
}

/// Launches the variant that the parameters need.
template <class T, int D, bool kWide>
cudaError_t launch_instance(const Launch& launch, bool overlap, cudaStream_t stream) {
  if (launch.params.soft_cap > 0.0F) {
    return launch_variant<Config<T, D, kWide, true>>(launch, overlap, stream);
  }
  return launch_variant<Config<T, D, kWide, false>>(launch, overlap, stream);
}

/// Loads both variants of an instance.
template <class T, int D, bool kWide>
Status load_instance() noexcept {
  return load_kernels(columns_kernel<Config<T, D, kWide, false>>,
                      columns_kernel<Config<T, D, kWide, true>>);
}

}  // namespace kvarena::kernels::columns
