#include "kernels/table_slots/table_slots.h"

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"

namespace kvarena::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    write_table_slots(const __grid_constant__ TableSlotsParams p) {
  const auto token = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (token >= p.num_tokens) return;
  const std::int64_t block = p.table[token / p.block_size].value;
  p.slots[token] = block * p.block_size + token % p.block_size;
}

}  // namespace

Status load_table_slots() noexcept { return load_kernels(write_table_slots); }

Status launch_table_slots(const TableSlotsParams& p, cudaStream_t stream) noexcept {
  if (Status s = in_range(Resource::num_tokens, p.num_tokens, 0, 0x7fffffff - kThreads); !s) {
    return s;
  }
  if (Status s = in_range(Resource::block_size, p.block_size, 1, 65536); !s) return s;
  if (p.num_tokens == 0) return {};
  if (Status s = not_null(p.table); !s) return s;
  if (Status s = not_null(p.slots); !s) return s;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>((p.num_tokens + kThreads - 1) / kThreads));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  return launch_status(cudaLaunchKernelEx(&config, write_table_slots, p));
}

}  // namespace kvarena::kernels
