#include "kernels/scatter_step/scatter_step.h"

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"
#include "kernels/scatter_step/scatter_step.cuh"

namespace kvarena::kernels {

Status load_scatter_step() noexcept { return load_kernels(scatter_step); }

Status launch_scatter_step(const ScatterStepParams& p, cudaStream_t stream) noexcept {
  for (const void* pointer :
       {static_cast<const void*>(p.ring), static_cast<const void*>(p.state),
        static_cast<const void*>(p.report), static_cast<const void*>(p.block_tables)}) {
    if (Status s = not_null(pointer); !s) return s;
  }
  if (!is_aligned(p.ring, 16)) return invalid_argument(Resource::alignment, 0, 16, 16);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(kScatterThreads);
  config.stream = stream;
  return launch_status(cudaLaunchKernelEx(&config, scatter_step, p));
}

}  // namespace kvarena::kernels
