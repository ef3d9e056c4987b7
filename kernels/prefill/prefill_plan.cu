// The plan of a step's prompts, made on the device by one thread block.

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"
#include "kernels/prefill/hopper_items.cuh"
#include "kernels/prefill/prefill.h"

#include <cub/block/block_scan.cuh>

namespace kvarena::kernels {
namespace {

constexpr int kThreads = 1024;
constexpr int kClassesLog2 = 11;
constexpr int kClasses = 1 << kClassesLog2;  ///< of lengths: 64 for each power of two
static_assert(kClasses == 2 * kThreads);

/// Returns the class of a length. Longer rows have smaller classes.
__device__ int class_of(int length) {
  const int steps = (__float_as_int(static_cast<float>(length)) >> 17) - (127 << 6);
  return kClasses - 1 - min(kClasses - 1, max(0, steps));
}

/// Sorts the rows by class (a counting sort) and finds the first item of each. The order within a
/// class may differ between runs; no result depends on it.
__global__ void __launch_bounds__(kThreads) plan_items(const __grid_constant__ PrefillParams p) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage scratch;
  __shared__ int places[kClasses];
  const AttentionParams& a = p.attention;
  const int num_rows = a.batch.num_rows;
  const auto thread = static_cast<int>(threadIdx.x);
  auto* const rows = reinterpret_cast<PlanRow*>(p.plan + 1);

  for (int i = thread; i < kClasses; i += kThreads) places[i] = 0;
  __syncthreads();
  for (int row = thread; row < num_rows; row += kThreads) {
    atomicAdd(&places[class_of(a.batch.seq_lens[row])], 1);
  }
  __syncthreads();
  int counts[2] = {places[2 * thread], places[2 * thread + 1]};
  Scan(scratch).ExclusiveSum(counts, counts);
  places[2 * thread] = counts[0];
  places[2 * thread + 1] = counts[1];
  __syncthreads();
  for (int row = thread; row < num_rows; row += kThreads) {
    const int place = atomicAdd(&places[class_of(a.batch.seq_lens[row])], 1);
    rows[place].first_item = row;  // until the items are counted
  }
  __syncthreads();
  int num_items = 0;
  for (int first = 0; first < num_rows; first += kThreads) {
    const int place = first + thread;
    PlanRow row{};
    if (place < num_rows) row = prefill::plan_row(p, rows[place].first_item);
    int before = 0;
    int all = 0;
    Scan(scratch).ExclusiveSum(row.q_tiles * a.kv.key.num_heads, before, all);
    __syncthreads();
    row.first_item = num_items + before;
    if (place < num_rows) rows[place] = row;
    num_items += all;
  }
  if (thread == 0) p.plan->num_items = num_items;
}

}  // namespace

Status load_prefill_plan() noexcept { return load_kernels(plan_items); }

Status launch_prefill_plan(const PrefillParams& params, cudaStream_t stream) noexcept {
  const BatchView& batch = params.attention.batch;
  if (batch.num_rows <= kRowsWithoutPlan) return {};
  for (const void* needed : {static_cast<const void*>(batch.seq_lens),
                             static_cast<const void*>(batch.tables.row_offsets)}) {
    if (Status s = not_null(needed); !s) return s;
  }
  if (Status s = aligned_pointer(params.plan, alignof(PrefillPlan)); !s) return s;
  plan_items<<<1, kThreads, 0, stream>>>(params);
  return launch_status(cudaGetLastError());
}

}  // namespace kvarena::kernels
