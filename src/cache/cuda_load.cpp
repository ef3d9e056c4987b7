// Loads the kernels of a cache's steps before its pool takes the memory that they need.

#include "cache/cuda_backend.hpp"
#include "device/current_gpu.hpp"
#include "kernels/append/scaled_append.h"
#include "kernels/common/launch_checks.h"
#include "kernels/copy_blocks/copy_blocks.h"
#include "kernels/copy_states/copy_states.h"
#include "kernels/scatter_step/scatter_step.h"
#include "kernels/scrub/scrub.h"
#include "kernels/table_slots/table_slots.h"
#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/device/cuda_device.hpp"

namespace kvarena {

namespace {

KvLayerView shape_of(DType key, DType value, std::int32_t head_dim_k,
                     std::int32_t head_dim_v) noexcept {
  KvLayerView kv;
  kv.key.dtype = key;
  kv.value.dtype = value;
  kv.key.head_dim = head_dim_k;
  kv.value.head_dim = head_dim_v == 0 ? head_dim_k : head_dim_v;
  return kv;
}

/// Loads what `load()` loads and the kernels of every step, with the GPU current.
template <class Load>
Status load_on(Device& device, Load load) noexcept {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  if (cuda == nullptr) return unsupported(Resource::device);
  const CurrentGpu current(cuda->ordinal());
  Status status = kernels::launch_status(current.error());
  if (status) status = load();
  if (status) status = kernels::load_copy_blocks();
  if (status) status = kernels::load_scrub();
  if (status) status = kernels::load_scatter_step();
  return status || status.code != StatusCode::device_error
             ? status
             : cuda->check(status.native, Resource::device);
}

}  // namespace

Status load_cuda_backend(Device& device, const UniformLayoutOptions& layout) noexcept {
  return load_on(device, [&] {
    return cuda::load_kernels(
        shape_of(layout.dtype, layout.dtype, layout.head_dim_k, layout.head_dim_v));
  });
}

Status load_cuda_backend(Device& device, std::span<const LayerGroup> groups) noexcept {
  return load_on(device, [&] {
    for (const LayerGroup& group : groups) {
      if (group.kind == PagedKind::state) {
        if (Status s = kernels::load_copy_states(); !s) return s;
        continue;
      }
      const KvLayerView kv = shape_of(group.dtype, group.dtype_v.value_or(group.dtype),
                                      group.head_dim_k, group.head_dim_v);
      if (Status s = cuda::load_kernels(kv); !s) return s;
      if (group.index_dim == 0) continue;
      if (Status s = kernels::load_scaled_append(); !s) return s;
    }
    return kernels::load_table_slots();
  });
}

}  // namespace kvarena
