#pragma once

/// @file
/// The units that the schedule of the columns kernel cuts. A unit is a slab of one item; units are
/// numbered by row, then item, then slab. The functions are those of one thread block, and all its
/// threads call the ones that number something. Included by columns_schedule.cu.

#include "kernels/columns/columns.h"
#include "kernels/columns/columns_workspace.h"

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

namespace kvarena::kernels::columns_schedule {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;
using Scan = cub::BlockScan<int, kThreads>;
using Reduce = cub::BlockReduce<long long, kThreads>;
static_assert(kMaxColumnsBlocks <= kThreads);

/// What the schedule keeps of each row, in dynamic shared memory.
struct Rows {
  int* first_unit;  // [num_rows + 1]
  int* slabs;       // [num_rows] of an item; 0: the row has none
  int* first_slot;  // [num_rows + 1] of partial results, with fixed parts
};

struct Shared {
  union {
    Scan::TempStorage scan;
    Reduce::TempStorage reduce;
  } scratch;
  int bound[kMaxColumnsBlocks + 1];      // first unit of a thread block
  int first_cut[kMaxColumnsBlocks + 1];  // parts of cut items before a thread block
  int cost[kWarps];
  long long slots;
};

/// The schedule's inputs and what all its functions use.
struct Context {
  const ColumnsScheduleParams& p;
  const ColumnsWorkspace& w;
  ColumnsShape shape;
  Rows rows;
  Shared& shared;
  int items_per_row;  // most items of a row
  int total;          // units
  int part_slabs;     // of a fixed part; 0: parts are not fixed
};

/// The length and query tokens of a row.
struct Row {
  int q_begin;
  int q_len;
  int seq_len;
  int first_seen;  // first token that a query token sees
};

__device__ inline Row row_at(const Context& c, int row) {
  const ColumnsScheduleParams& p = c.p;
  Row r{};
  if (p.q_offsets == nullptr) {
    r.q_len = p.limits.q_len;
    r.q_begin = static_cast<int>(p.first_q + static_cast<long long>(row) * r.q_len);
  } else {
    r.q_begin = static_cast<int>(p.q_offsets[row]);
    r.q_len = static_cast<int>(p.q_offsets[row + 1] - p.q_offsets[row]);
  }
  r.seq_len = p.seq_lens[row];
  if (p.window_tokens > 0) r.first_seen = max(0, r.seq_len - r.q_len + 1 - p.window_tokens);
  return r;
}

/// Returns the slabs of each item of a row. An empty row has one slab, so that zeros are written.
__device__ inline int slabs_of(const Context& c, int row, const Row& r) {
  if (r.q_len <= 0 || (c.p.row_slots != nullptr && c.p.row_slots[row] < 0)) return 0;
  const int tokens = c.shape.slab_tokens;
  return max(1, (r.seq_len + tokens - 1) / tokens - r.first_seen / tokens);
}

/// Returns the items of a row: its KV heads times its column groups, not more than the limits say.
__device__ inline int items_of(const Context& c, const Row& r) {
  const int group = c.p.limits.num_q_heads / c.p.limits.num_kv_heads;
  const int groups = (r.q_len * group + c.shape.columns - 1) / c.shape.columns;
  return min(groups * c.p.limits.num_kv_heads, c.items_per_row);
}

/// Returns the parts of an item of `slabs` slabs from `first` on, cut at multiples of `length`.
__device__ inline int parts_of(int first, int slabs, int length) {
  return (first + slabs + length - 1) / length - first / length;
}

/// Numbers the units of all rows. Returns their number.
__device__ inline int number_units(const Context& c) {
  int before = 0;
  for (int base = 0; base < c.p.num_rows; base += kThreads) {
    const int row = base + static_cast<int>(threadIdx.x);
    int units = 0;
    if (row < c.p.num_rows) {
      const Row r = row_at(c, row);
      c.rows.slabs[row] = slabs_of(c, row, r);
      units = c.rows.slabs[row] == 0 ? 0 : c.rows.slabs[row] * items_of(c, r);
    }
    int first = 0;
    int all = 0;
    Scan(c.shared.scratch.scan).ExclusiveSum(units, first, all);
    if (row < c.p.num_rows) c.rows.first_unit[row] = before + first;
    before += all;
    __syncthreads();
  }
  if (threadIdx.x == 0) c.rows.first_unit[c.p.num_rows] = before;
  __syncthreads();
  return before;
}

/// Returns the partial results of a row with parts of `length` slabs.
__device__ inline int slots_of(const Context& c, int row, int length) {
  const int slabs = c.rows.slabs[row];
  if (slabs == 0) return 0;
  const int parts = parts_of(row_at(c, row).first_seen / c.shape.slab_tokens, slabs, length);
  return parts == 1 ? 0 : parts * ((c.rows.first_unit[row + 1] - c.rows.first_unit[row]) / slabs);
}

/// Returns the slabs of a fixed part. Where a step has more tokens than the limits say, parts are
/// doubled until their results fit the workspace.
__device__ inline int choose_part_slabs(const Context& c) {
  int length = fixed_part_slabs(c.shape);
  while (true) {
    long long slots = 0;
    for (int row = static_cast<int>(threadIdx.x); row < c.p.num_rows; row += kThreads) {
      slots += slots_of(c, row, length);
    }
    const long long all = Reduce(c.shared.scratch.reduce).Sum(slots);
    if (threadIdx.x == 0) c.shared.slots = all;
    __syncthreads();
    const bool fits = c.shared.slots <= c.w.max_slots;
    __syncthreads();
    if (fits) return length;
    length *= 2;
  }
}

/// Numbers the partial results of all rows, with fixed parts.
__device__ inline void number_slots(const Context& c) {
  int before = 0;
  for (int base = 0; base < c.p.num_rows; base += kThreads) {
    const int row = base + static_cast<int>(threadIdx.x);
    const int slots = row < c.p.num_rows ? slots_of(c, row, c.part_slabs) : 0;
    int first = 0;
    int all = 0;
    Scan(c.shared.scratch.scan).ExclusiveSum(slots, first, all);
    if (row < c.p.num_rows) c.rows.first_slot[row] = before + first;
    before += all;
    __syncthreads();
  }
}

/// The place of a unit: slab `slab` of item `item` of a row.
struct Unit {
  int row;
  int item;
  int slab;   // from the item's first
  int slabs;  // of the item
};

/// Moves to unit `x`, in the row of `from` or a later one.
__device__ inline Unit unit_after(const Context& c, Unit from, int x) {
  while (from.row + 1 < c.p.num_rows && c.rows.first_unit[from.row + 1] <= x) ++from.row;
  const int within = x - c.rows.first_unit[from.row];
  from.slabs = c.rows.slabs[from.row];
  from.item = within / from.slabs;
  from.slab = within - from.item * from.slabs;
  return from;
}

/// Finds unit `x`, which exists: the last row that begins at or before it has units.
__device__ inline Unit unit_at(const Context& c, int x) {
  int low = 0;
  int high = c.p.num_rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (c.rows.first_unit[middle] <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return unit_after(c, {low, 0, 0, 0}, x);
}

}  // namespace kvarena::kernels::columns_schedule
