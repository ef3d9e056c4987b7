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
  unsigned cluster = 1;          ///< thread blocks of a cluster; the grid has whole clusters
};

/// Queues a kernel. With `overlap` the launch is programmatic: the kernel may begin while the
/// kernel in front of it on the stream is ending, and must wait for its results.
template <class... Params, class... Args>
cudaError_t launch_kernel(void (*kernel)(Params...), const LaunchShape& shape, bool overlap,
                          cudaStream_t stream, Args&&... args) noexcept {
  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
  config.attrs = attributes;
  if (overlap) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = shape.cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  }
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
}

}  // namespace kvarena::kernels
