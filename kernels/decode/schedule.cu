// The launch of the schedule of a decode step, which is made on the device.

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"
#include "kernels/decode/schedule_kernel.cuh"

#include <algorithm>
#include <array>
#include <utility>

namespace kvarena::kernels {
namespace decode_schedule {
namespace {

/// Makes the schedule of a step for a number of warps.
template <int kAttentionWarps>
__global__ void __launch_bounds__(kThreads, 1)
    write_schedule(const __grid_constant__ DecodeScheduleParams p,
                   const __grid_constant__ DecodeWorkspace w, CutShape shape,
                   const __grid_constant__ Limits limits) {
  make_schedule<kAttentionWarps>(p, w, shape, limits);
}

/// A schedule for a number of warps.
struct WarpsSchedule {
  int warps;
  void (*kernel)(DecodeScheduleParams, DecodeWorkspace, CutShape, Limits);
};
template <int... kWarpsOf>
constexpr auto schedules_of(std::integer_sequence<int, kWarpsOf...>) noexcept {
  return std::array{WarpsSchedule{kWarpsOf, write_schedule<kWarpsOf>}...};
}
constexpr auto kSchedules = schedules_of(AttentionWarps{});

/// Checks whether `p` can be scheduled.
Status check(const DecodeScheduleParams& p) noexcept {
  if (Status s = check_decode_limits(p.limits); !s) return s;
  if (Status s = in_range(Resource::num_sequences, p.num_rows, 0, kMaxDecodeRows); !s) return s;
  if (p.num_rows > 0) {
    if (Status s = not_null(p.seq_lens); !s) return s;
  }
  if (p.fixed_parts) {
    if (Status s = in_range(Resource::num_tokens, p.limits.fixed_tokens, 1, kMaxFixedDecodeTokens);
        !s) {
      return s;
    }
  }
  return check_decode_workspace(p.limits, p.workspace, p.workspace_bytes);
}

}  // namespace
}  // namespace decode_schedule

Status load_decode_schedule() noexcept {
  using decode_schedule::kSchedules;
  for (const auto& its : kSchedules) {
    if (Status s = load_kernels(its.kernel); !s) return s;
  }
  return {};
}

Status launch_decode_schedule(const DecodeScheduleParams& params, cudaStream_t stream) noexcept {
  using decode_schedule::kSchedules;
  using decode_schedule::WarpsSchedule;
  if (Status s = decode_schedule::check(params); !s) return s;
  const DecodeLimits& limits = params.limits;
  const DecodeWorkspace workspace = decode_workspace(limits);
  const CutShape cut = cut_shape(limits, workspace);
  const auto its = std::ranges::find(kSchedules, cut.warps, &WarpsSchedule::warps);
  if (its == std::end(kSchedules)) return launch_status(cudaErrorInvalidValue);
  const int blocks = decode_schedule::blocks_for(workspace);
  its->kernel<<<blocks, decode_schedule::kThreads, 0, stream>>>(
      params, workspace, cut, decode_schedule::limits_of(limits, cut));
  return launch_status(cudaGetLastError());
}

}  // namespace kvarena::kernels
