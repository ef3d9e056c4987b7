// The launch of the schedule of the columns kernel, which is made on the device by one thread
// block.

#include "kernels/columns/columns_schedule.cuh"
#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"

namespace kvarena::kernels {
namespace columns_schedule {
namespace {

/// Makes the schedule of a step.
__global__ void __launch_bounds__(kThreads)
    write_schedule(const __grid_constant__ ColumnsScheduleParams p,
                   const __grid_constant__ ColumnsWorkspace w,
                   const __grid_constant__ PrefixPlan plan, ColumnsShape shape, int most) {
  extern __shared__ int memory[];
  make_schedule(p, w, plan, shape, most, memory);
}

/// Checks whether `p` can be scheduled.
Status check(const ColumnsScheduleParams& p) noexcept {
  if (Status s = check_columns_limits(p.limits); !s) return s;
  const bool may_have_runs = has_runs(p.limits) && p.limits.q_len == kRunTokens;
  const std::int32_t most = may_have_runs ? kMaxRunsTokens : p.limits.q_len;
  if (Status s = in_range(Resource::num_tokens, p.max_q_len, 0, most); !s) return s;
  const std::int32_t longest = p.max_q_len > 0 ? p.max_q_len : p.limits.q_len;
  if (Status s = in_range(Resource::num_tokens, p.min_q_len, 1, longest); !s) return s;
  if (Status s = in_range(Resource::num_sequences, p.num_rows, 0, 0x7fffffff); !s) return s;
  if (Status s = in_range(Resource::window, p.window_tokens, 0, 0x7fffffff); !s) return s;
  if (Status s = in_range(Resource::token_index, p.first_q, 0, 0x7fffffff); !s) return s;
  if (p.num_rows > 0) {
    if (Status s = aligned_pointer(p.seq_lens, alignof(std::int32_t)); !s) return s;
  }
  if (!is_aligned(p.q_offsets, alignof(std::int64_t))) return aligned_pointer(p.q_offsets, 8);
  if (p.prefixes != nullptr) {
    if (Status s = aligned_pointer(p.prefixes, 256); !s) return s;
    if (Status s = aligned_pointer(p.shared_tokens, alignof(std::int32_t)); !s) return s;
  }
  return check_columns_workspace(p.limits, p.workspace, p.workspace_bytes);
}

}  // namespace
}  // namespace columns_schedule

Status load_columns_schedule() noexcept { return load_kernels(columns_schedule::write_schedule); }

Status launch_columns_schedule(const ColumnsScheduleParams& params, cudaStream_t stream) noexcept {
  using columns_schedule::kThreads;
  if (Status s = columns_schedule::check(params); !s) return s;
  const auto kernel = columns_schedule::write_schedule;
  const int most = columns_schedule::most_entries(params);
  const int bytes = (3 * most + 1) * static_cast<int>(sizeof(int));
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error != cudaSuccess) return launch_status(error);
  kernel<<<1, kThreads, static_cast<std::size_t>(bytes), stream>>>(
      params, columns_workspace(params.limits), prefix_plan(params.limits),
      columns_shape(params.limits), most);
  return launch_status(cudaGetLastError());
}

}  // namespace kvarena::kernels
