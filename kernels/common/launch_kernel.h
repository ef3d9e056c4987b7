#pragma once

/// @file
/// The launch of a kernel that may overlap the kernel in front of it (grid_dependency.cuh).

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

namespace kvarena::kernels {

/// The thread blocks of a launch.
struct LaunchShape {
  dim3 grid;                     ///< thread blocks
  dim3 block;                    ///< threads of each
  std::size_t shared_bytes = 0;  ///< dynamic shared memory of each
};

/// Queues a kernel. With `overlap` the launch is programmatic: the kernel may begin while the
/// kernel in front of it on the stream is ending, and must wait for its results.
template <class... Params, class... Args>
cudaError_t launch_kernel(void (*kernel)(Params...), const LaunchShape& shape, bool overlap,
                          cudaStream_t stream, Args&&... args) noexcept {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlap ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace kvarena::kernels
