#pragma once

/// @file
/// The arriver of the columns kernel: a warp that counts the parts of members of shared prefixes
/// as arrived, and combines an item whose last part it was. These parts are short and many. A fence
/// and an atomic operation wait behind the copies that are queued, and the consumers go on with the
/// next segment meanwhile. Included by columns.cuh.

#include "kernels/columns/columns_combine.cuh"
#include "kernels/columns/columns_config.cuh"
#include "kernels/common/grid_dependency.cuh"

namespace kvarena::kernels::columns {

/// Tells the arriver that this warp has written its columns of a part.
template <class C>
__device__ __forceinline__ void give_part(Shared<C>& shared, int warp, int lane) {
  __syncwarp();
  if (lane != 0) return;
  int* const written = &shared.written[warp];
  asm volatile("st.release.cta.shared.b32 [%0], %1;" ::"r"(shared_address(written)),
               "r"(*written + 1)
               : "memory");
}

/// Waits until all consumer warps have written `count` parts.
template <class C>
__device__ __forceinline__ void wait_for_parts(Shared<C>& shared, int count, int lane) {
  const std::uint32_t written = shared_address(&shared.written[lane % (C::kConsumers / 32)]);
  while (true) {
    int its;
    asm volatile("ld.acquire.cta.shared.b32 %0, [%1];" : "=r"(its) : "r"(written) : "memory");
    if (__all_sync(~0U, its >= count)) return;
    __nanosleep(200);
  }
}

/// Counts the parts of all segments that are the arriver's.
template <class C>
__device__ __forceinline__ void run_arriver(const Launch& launch, Shared<C>& shared, int words,
                                            int lane) {
  sync_named<kSetUpBarrier>(C::kSetUpThreads);
  wait_for_previous_kernel();
  int parts = 0;
  while (true) {
    const ColumnsSegment segment = segment_of(words);
    if (segment.slabs == 0) return;
    const int next = segment.next >= 0 ? load_words(launch, segment.next, lane) : 0;
    if (is_for_arriver<C>(launch, segment)) {
      wait_for_parts(shared, ++parts, lane);
      const bool is_last = lane == 0 && arrive_at(launch, segment.item, segment.arrivals);
      if (__any_sync(~0U, is_last)) {
        __syncwarp();
        combine<C, 2, 2>(launch, load_item(launch, segment.item), 0, 1, lane);
      }
    }
    if (segment.next < 0) return;
    words = next;
  }
}

}  // namespace kvarena::kernels::columns
