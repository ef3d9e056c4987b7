// Loads the kernels of a cache's steps before its pool takes the memory that they need.

#include "cache/cuda_backend.hpp"
#include "device/current_gpu.hpp"
#include "kernels/common/launch_checks.h"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/scatter_step/scatter_step.h"
#include "kernels/scrub/scrub.h"
#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/device/cuda_device.hpp"

namespace kvarena {

Status load_cuda_backend(Device& device, const UniformLayoutOptions& layout) noexcept {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) return unsupported(Resource::device);
  KvLayerView kv;
  kv.key.dtype = kv.value.dtype = layout.dtype;
  kv.key.head_dim = layout.head_dim_k;
  kv.value.head_dim = layout.head_dim_v == 0 ? layout.head_dim_k : layout.head_dim_v;
  const CurrentGpu current(cuda->ordinal());
  Status status = kernels::launch_status(current.error());
  if (status) status = cuda::load_kernels(kv);
  if (status) status = kernels::load_copy_blocks();
  if (status) status = kernels::load_scrub();
  if (status) status = kernels::load_scatter_step();
  return status || status.code != StatusCode::device_error
             ? status
             : cuda->check(status.native, Resource::device);
}

}  // namespace kvarena
