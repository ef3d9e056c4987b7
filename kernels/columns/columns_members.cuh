#pragma once

/// @file
/// The kernel that combines rows with a shared prefix. It follows the columns kernel, which leaves
/// the parts of prefixes and the rows' own parts in the workspace. While copies are queued, a load
/// in the columns kernel takes 2 us; here it takes a fourth of that. Included by
/// columns_launch.cuh.

#include "kernels/columns/columns_combine.cuh"
#include "kernels/columns/columns_config.cuh"
#include "kernels/common/grid_dependency.cuh"

namespace kvarena::kernels::columns {

inline constexpr int kMemberThreads = 128;

/// Combines the parts of all rows with a prefix, in their order. With few items four warps have one
/// together, with many each warp has its own, so that all are combined in one go. The items are
/// read before the columns kernel has completed: the schedule, which wrote them, had completed
/// before that began.
template <class C>
__global__ void __launch_bounds__(kMemberThreads, 4)
    combine_members(const __grid_constant__ Launch launch) {
  constexpr int kWarps = kMemberThreads / 32;
  constexpr bool kIsLong = C::kDim > 128;  // registers hold fewer parts
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int members = __ldg(reinterpret_cast<const int*>(launch.at(launch.workspace.members)));
  const int first = launch.workspace.max_slots;
  const int blocks = static_cast<int>(gridDim.x);
  const int together = members <= blocks ? kWarps : members <= 2 * blocks ? 2 : 1;
  const int at_once = blocks * (kWarps / together);
  const int own = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int warp = own % together;
  int index = own / together;
  ColumnsItem item = load_item(launch, first + min(index, launch.workspace.max_items - first - 1));
  wait_for_previous_kernel();
  let_next_kernel_begin();
  while (index < members) {
    if (item.columns <= together) {
      combine<C, 1, kIsLong ? 6 : 12>(launch, item, warp, together, lane);
    } else if (item.columns <= 2 * together) {
      combine<C, 2, kIsLong ? 3 : 6>(launch, item, warp, together, lane);
    } else {
      combine<C, kIsLong ? 2 : 4, kIsLong ? 2 : 3>(launch, item, warp, together, lane);
    }
    index += at_once;
    if (index < members) item = load_item(launch, first + index);
  }
}

}  // namespace kvarena::kernels::columns
