#include "kernels/scatter_step/scatter_step.h"

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"
#include "kernels/scatter_step/scatter_states.cuh"
#include "kernels/scatter_step/scatter_step.cuh"

namespace kvarena::kernels {

/// A step of several parts and groups of states, a thread block for each.
__global__ void __launch_bounds__(kScatterThreads)
    scatter_parts(const __grid_constant__ ScatterPartsParams all, int num_parts) {
  const int block = static_cast<int>(blockIdx.x);
  if (block < num_parts) {
    scatter<true>(all.parts[block]);
  } else {
    scatter_states(all.states[block - num_parts]);
  }
}

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

Status check(const ScatterStatesParams& p) noexcept {
  const void* const pointers[] = {p.ring,  p.state,        p.report,      p.read,
                                  p.write, p.extra_tokens, p.extra_slots, p.copies};
  for (const void* pointer : pointers) {
    if (Status s = aligned_pointer(pointer, pointer == p.report || pointer == p.state ? 8 : 16);
        !s) {
      return s;
    }
  }
  return not_null(p.extra_offsets);
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
                            std::int32_t num_states, cudaStream_t stream) noexcept {
  if (Status s = in_range(Resource::num_groups, num_states, 0, ScatterPartsParams::kMostStates);
      !s) {
    return s;
  }
  if (Status s = in_range(Resource::num_groups, num_parts, num_states > 0 ? 0 : 1,
                          ScatterPartsParams::kMostParts);
      !s) {
    return s;
  }
  for (std::int32_t i = 0; i < num_parts; ++i) {
    if (Status s = check(all.parts[i]); !s) return s;
  }
  for (std::int32_t i = 0; i < num_states; ++i) {
    if (Status s = check(all.states[i]); !s) return s;
  }
  const cudaLaunchConfig_t config = config_of(num_parts + num_states, stream);
  return launch_status(cudaLaunchKernelEx(&config, scatter_parts, all, num_parts));
}

}  // namespace kvarena::kernels
