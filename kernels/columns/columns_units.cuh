#pragma once

/// @file
/// The units that the schedule of the columns kernel cuts. The rows of the class are listed in the
/// order of the batch; an entry is an index of that list. A unit is a slab of one item; units are
/// numbered by entry, then item, then slab. The functions are those of one thread block, and all
/// its threads call the ones that number something. Included by columns_schedule.cu.

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

/// What the schedule keeps of each entry: in dynamic shared memory, and the rest in the workspace.
struct Entries {
  int* row;         // [max_entries] of the batch
  int* slabs;       // [max_entries] of an item
  int* first_unit;  // [max_entries + 1]
  int* first_slot;  // [max_entries] of partial results, with fixed parts
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
  Entries entries;
  Shared& shared;
  int max_entries;
  int num_entries;
  int total;       // units
  int part_slabs;  // of a fixed part; 0: parts are not fixed
};

/// The length and query tokens of a row.
struct Row {
  int q_begin;
  int q_len;
  int seq_len;
  int first_seen;  // first token that a query token sees
};

__device__ inline Row row_at(const ColumnsScheduleParams& p, int row) {
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

/// Returns whether a row is of the class.
__device__ inline bool is_listed(const Context& c, int row, const Row& r) {
  return r.q_len >= max(1, c.p.min_q_len) && r.q_len <= c.p.limits.q_len &&
         (c.p.row_slots == nullptr || c.p.row_slots[row] >= 0);
}

/// Returns the slabs of each item of a row. An empty row has one slab, so that zeros are written.
__device__ inline int slabs_of(const Context& c, const Row& r) {
  const int tokens = c.shape.slab_tokens;
  return max(1, (r.seq_len + tokens - 1) / tokens - r.first_seen / tokens);
}

/// Returns the items of a row: its KV heads times its column groups.
__device__ inline int items_of(const Context& c, const Row& r) {
  const int group = c.p.limits.num_q_heads / c.p.limits.num_kv_heads;
  return (r.q_len * group + c.shape.columns - 1) / c.shape.columns * c.p.limits.num_kv_heads;
}

/// Returns the parts of an item of `slabs` slabs from `first` on, cut at multiples of `length`.
__device__ inline int parts_of(int first, int slabs, int length) {
  return (first + slabs + length - 1) / length - first / length;
}

/// Lists the rows of the class and numbers their units. Rows that the workspace has no room for are
/// left out.
__device__ inline void list_entries(Context& c) {
  int entries = 0;
  int units = 0;
  for (int base = 0; base < c.p.num_rows; base += kThreads) {
    const int row = base + static_cast<int>(threadIdx.x);
    const bool is_row = row < c.p.num_rows;
    const Row r = is_row ? row_at(c.p, row) : Row{};
    const bool is_in = is_row && is_listed(c, row, r);
    const int slabs = is_in ? slabs_of(c, r) : 0;
    int at = 0;
    int listed = 0;
    Scan(c.shared.scratch.scan).ExclusiveSum(is_in ? 1 : 0, at, listed);
    __syncthreads();
    int first = 0;
    int all = 0;
    Scan(c.shared.scratch.scan).ExclusiveSum(is_in ? slabs * items_of(c, r) : 0, first, all);
    at += entries;
    if (is_in && at <= c.max_entries) c.entries.first_unit[at] = units + first;
    if (is_in && at < c.max_entries) {
      c.entries.row[at] = row;
      c.entries.slabs[at] = slabs;
    }
    entries += listed;
    units += all;
    __syncthreads();
  }
  if (threadIdx.x == 0 && entries <= c.max_entries) c.entries.first_unit[entries] = units;
  __syncthreads();
  c.num_entries = min(entries, c.max_entries);
  c.total = c.entries.first_unit[c.num_entries];
}

/// Returns the partial results of an entry with parts of `length` slabs.
__device__ inline int slots_of(const Context& c, int entry, int length) {
  const int slabs = c.entries.slabs[entry];
  const Row r = row_at(c.p, c.entries.row[entry]);
  const int parts = parts_of(r.first_seen / c.shape.slab_tokens, slabs, length);
  return parts == 1 ? 0 : parts * items_of(c, r);
}

/// Returns the slabs of a fixed part. Where a step has more tokens than the limits say, parts are
/// doubled until their results fit the workspace.
__device__ inline int choose_part_slabs(const Context& c) {
  int length = fixed_part_slabs(c.shape);
  while (true) {
    long long slots = 0;
    for (int entry = static_cast<int>(threadIdx.x); entry < c.num_entries; entry += kThreads) {
      slots += slots_of(c, entry, length);
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

/// Numbers the partial results of all entries, with fixed parts.
__device__ inline void number_slots(const Context& c) {
  int before = 0;
  for (int base = 0; base < c.num_entries; base += kThreads) {
    const int entry = base + static_cast<int>(threadIdx.x);
    const int slots = entry < c.num_entries ? slots_of(c, entry, c.part_slabs) : 0;
    int first = 0;
    int all = 0;
    Scan(c.shared.scratch.scan).ExclusiveSum(slots, first, all);
    if (entry < c.num_entries) c.entries.first_slot[entry] = before + first;
    before += all;
    __syncthreads();
  }
}

/// The place of a unit: slab `slab` of item `item` of an entry.
struct Unit {
  int entry;
  int item;
  int slab;   // from the item's first
  int slabs;  // of the item
};

/// Moves to unit `x`, in the entry of `from` or a later one.
__device__ inline Unit unit_after(const Context& c, Unit from, int x) {
  while (from.entry + 1 < c.num_entries && c.entries.first_unit[from.entry + 1] <= x) ++from.entry;
  const int within = x - c.entries.first_unit[from.entry];
  from.slabs = c.entries.slabs[from.entry];
  from.item = within / from.slabs;
  from.slab = within - from.item * from.slabs;
  return from;
}

/// Finds unit `x`, which exists.
__device__ inline Unit unit_at(const Context& c, int x) {
  int low = 0;
  int high = c.num_entries;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (c.entries.first_unit[middle] <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return unit_after(c, {low, 0, 0, 0}, x);
}

}  // namespace kvarena::kernels::columns_schedule
