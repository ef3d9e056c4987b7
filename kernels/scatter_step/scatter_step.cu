#include "kernels/scatter_step/scatter_step.h"

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"
#include "kernels/scatter_step/scatter_step.cuh"

namespace kvarena::kernels {

Status load_scatter_step() noexcept { return load_kernels(scatter_step, scatter_parts); }

namespace {

Status check(const ScatterStepParams& p) noexcept {
  for (const void* pointer :
       {static_cast<const void*>(p.ring), static_cast<const void*>(p.state),
        static_cast<const void*>(p.report), static_cast<const void*>(p.block_tables)}) {
    if (Status s = not_null(pointer); !s) return s;
  }
  return is_aligned(p.ring, 16) ? Status{} : invalid_argument(Resource::alignment, 0, 16, 16);
}

cudaLaunchConfig_t config_of(std::int32_t blocks, cudaStream_t stream) noexcept {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(kScatterThreads);
  config.stream = stream;
  return config;
}

}  // namespace

Status launch_scatter_step(const ScatterStepParams& p, cudaStream_t stream) noexcept {
  if (Status s = check(p); !s) return s;
  const cudaLaunchConfig_t config = config_of(1, stream);
  return launch_status(cudaLaunchKernelEx(&config, scatter_step, p));
}

Status launch_scatter_parts(const ScatterPartsParams& all, std::int32_t num_parts,
                            cudaStream_t stream) noexcept {
  if (Status s = in_range(Resource::num_groups, num_parts, 1, ScatterPartsParams::kMostParts); !s) {
    return s;
  }
  for (std::int32_t i = 0; i < num_parts; ++i) {
    if (Status s = check(all.parts[i]); !s) return s;
  }
  const cudaLaunchConfig_t config = config_of(num_parts, stream);
  return launch_status(cudaLaunchKernelEx(&config, scatter_parts, all));
}

}  // namespace kvarena::kernels
