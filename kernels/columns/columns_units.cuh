#pragma once

/// @file
/// The units that the schedule of the columns kernel cuts. An entry is a tile of a shared prefix, a
/// member of a tile with its own tokens, or another row of the class; they are listed in this
/// order. A unit is a slab of one item; units are numbered by entry, then item, then slab. The
/// functions are those of one thread block, and all its threads call the ones that number
/// something. Included by columns_schedule.cuh.

#include "kernels/columns/columns.h"
#include "kernels/columns/columns_rows.cuh"
#include "kernels/columns/columns_workspace.h"
#include "kernels/columns/prefix_plan.h"

#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

namespace kvarena::kernels::columns_schedule {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;
using Scan = cub::BlockScan<int, kThreads>;
using Reduce = cub::BlockReduce<long long, kThreads>;
/// Runs of neighbouring units that thread blocks have: one each, or with prefixes two.
inline constexpr int kMaxRuns = 2 * kMaxColumnsBlocks;
static_assert(kMaxRuns <= kThreads);

/// What the schedule keeps of each entry: in dynamic shared memory, and the rest in the workspace.
struct Entries {
  int* row;         // [max_entries] of the batch, of latents with the run's number times 2^20; of a
                    // tile or a member: its index
  int* slabs;       // [max_entries] of an item
  int* first_unit;  // [max_entries + 1]
  int* first_slot;  // [max_entries] of partial results, with fixed parts
};

struct Shared {
  union {
    Scan::TempStorage scan;
    Reduce::TempStorage reduce;
  } scratch;
  int bound[kMaxRuns + 1];      // first unit of a run
  int first_cut[kMaxRuns + 1];  // parts of cut items before a run
  int segments[kMaxRuns];       // of a run
  int next[kMaxRuns];           // number of the first segment of a run that begins no thread block
  int cost[kWarps];
  int items;
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
  PrefixPlan plan;
  int num_tiles;    // the first entries
  int num_members;  // the next ones
  int num_entries;
  int total;         // units
  int part_slabs;    // of a fixed part; 0: parts are not fixed
  int end_unit[3];   // of tiles, of members, and of other rows: one past the last
  int unit_cost[3];  // of theirs
  int blocks;        // thread blocks that get units
  int tile_blocks;   // the first ones: those that get units of tiles
  int runs;          // of all thread blocks; first those of tiles
  int team;          // thread blocks that have the same slabs, of neighbouring items of a row

  __device__ const PrefixTile& tile(int i) const {
    return reinterpret_cast<const PrefixTile*>(plan_at(plan.tiles))[i];
  }
  __device__ const PrefixMember& member(int i) const {
    return reinterpret_cast<const PrefixMember*>(plan_at(plan.members))[i];
  }
  __device__ const char* plan_at(std::int64_t offset) const {
    return static_cast<const char*>(p.prefixes) + offset;
  }
  __device__ int group() const { return p.limits.num_q_heads / p.limits.num_kv_heads; }
};

/// Whether the rows are latents.
__device__ inline bool is_latent(const Context& c) { return c.p.limits.head_dim == kLatentDim; }
/// Whether a row may have several entries: runs.
__device__ inline bool has_runs(const Context& c) { return kernels::has_runs(c.p.limits); }

inline constexpr int kRunShift = 20;
/// Returns the row of the batch of an entry that is no tile and no member.
__device__ inline int batch_row(const Context& c, int entry) {
  const int row = c.entries.row[entry];
  return has_runs(c) ? row & ((1 << kRunShift) - 1) : row;
}
/// Returns what the entry computes of it.
__device__ inline ColumnsRow row_of(const Context& c, int entry) {
  const ColumnsRow r = load_row(c.p, batch_row(c, entry));
  return has_runs(c) ? run_of_row(r, c.entries.row[entry] >> kRunShift) : r;
}

/// Whether a step's prefixes are used.
__device__ inline bool uses_prefixes(const ColumnsScheduleParams& p) {
  return p.prefixes != nullptr && p.limits.shared_rows > 0 && p.window_tokens == 0 &&
         !p.fixed_parts;
}

/// Returns the first token that a query token of a row sees.
__device__ inline int first_seen(const ColumnsScheduleParams& p, const ColumnsRow& r) {
  return p.window_tokens > 0 ? max(0, r.seq_len - r.q_len + 1 - p.window_tokens) : 0;
}

/// Returns whether a row is of the class.
__device__ inline bool is_of_class(const ColumnsScheduleParams& p, int row, const ColumnsRow& r) {
  const bool is_member = p.shared_tokens != nullptr && p.shared_tokens[row] > 0;
  return r.q_len >= (is_member ? 1 : max(1, p.min_q_len)) &&
         r.q_len <= (p.max_q_len > 0 ? p.max_q_len : p.limits.q_len) && table_row_of(p, row) >= 0;
}

/// Returns the slabs of each item of a row. An empty row has one slab, so that zeros are written.
__device__ inline int slabs_of(const Context& c, const ColumnsRow& r) {
  const int tokens = c.shape.slab_tokens;
  return max(1, (r.seq_len + tokens - 1) / tokens - first_seen(c.p, r) / tokens);
}

/// Returns the items of a row: its KV heads times its column groups.
__device__ inline int items_of(const Context& c, const ColumnsRow& r) {
  return (r.q_len * c.group() + c.shape.columns - 1) / c.shape.columns * c.p.limits.num_kv_heads;
}

/// Returns the parts of an item of `slabs` slabs from `first` on, cut at multiples of `length`.
__device__ inline int parts_of(int first, int slabs, int length) {
  return (first + slabs + length - 1) / length - first / length;
}

/// Appends an entry of each thread that has one, and numbers its units: those of teams. Entries
/// that there is no room for are left out. c.num_entries and c.total count them all.
__device__ inline void append_entries(Context& c, bool is_in, int row, int slabs, int items) {
  int at = 0;
  int listed = 0;
  Scan(c.shared.scratch.scan).ExclusiveSum(is_in ? 1 : 0, at, listed);
  __syncthreads();
  int first = 0;
  int all = 0;
  Scan(c.shared.scratch.scan).ExclusiveSum(is_in ? slabs * (items / c.team) : 0, first, all);
  at += c.num_entries;
  if (is_in && at <= c.max_entries) c.entries.first_unit[at] = c.total + first;
  if (is_in && at < c.max_entries) {
    c.entries.row[at] = row;
    c.entries.slabs[at] = slabs;
  }
  c.num_entries += listed;
  c.total += all;
  __syncthreads();
}

/// Lists the tiles and their members.
__device__ inline void list_tiles(Context& c) {
  const auto header = *reinterpret_cast<const PrefixHeader*>(c.plan_at(c.plan.header));
  const int tokens = c.shape.slab_tokens;
  for (int base = 0; base < header.num_tiles + header.num_members; base += kThreads) {
    const int i = base + static_cast<int>(threadIdx.x);
    const int member = i - header.num_tiles;
    const bool is_in = member < header.num_members;
    int slabs = 0;
    if (member < 0) {
      slabs = (c.tile(i).shared_tokens + tokens - 1) / tokens;
    } else if (is_in) {
      const PrefixMember m = c.member(member);
      const int own = c.p.seq_lens[m.row] - c.tile(m.tile).shared_tokens;
      slabs = max(1, (own + tokens - 1) / tokens);
    }
    append_entries(c, is_in, member < 0 ? i : member, slabs, c.p.limits.num_kv_heads);
  }
  c.num_tiles = header.num_tiles;
  c.num_members = header.num_members;
}

/// Lists the second and later runs of 1,024 rows of latents from `base` on. Thread `i` knows how
/// many row base + i has; rows with several are few.
__device__ inline void list_runs(Context& c, int base, int runs) {
  __shared__ int first;
  while (true) {
    if (threadIdx.x == 0) first = kThreads;
    __syncthreads();
    if (runs > 1) atomicMin(&first, static_cast<int>(threadIdx.x));
    __syncthreads();
    const int thread = first;
    if (thread == kThreads) return;
    const int row = base + thread;
    const ColumnsRow r = load_row(c.p, row);
    const int count = runs_of(r);
    for (int from = 1; from < count; from += kThreads) {
      const int run = from + static_cast<int>(threadIdx.x);
      const bool is_in = run < count;
      const ColumnsRow its = run_of_row(r, min(run, count - 1));
      append_entries(c, is_in, row | run << kRunShift, slabs_of(c, its), items_of(c, its));
    }
    if (static_cast<int>(threadIdx.x) == thread) runs = 0;
    __syncthreads();
  }
}

/// Most thread blocks of a team.
inline constexpr int kMostOfTeam = 4;

/// Chooses the thread blocks of a team: the items of a row of latents are its column groups, which
/// read the same tokens, and a team reads them at about the same time. It divides the items of
/// every row.
__device__ inline void choose_team(Context& c) {
  c.team = 1;
  const int columns = min(c.p.limits.q_len, kRunTokens) * c.group();
  if (!is_latent(c) || (columns <= c.shape.columns && !has_runs(c))) return;
  if (threadIdx.x == 0) c.shared.items = min(kMostOfTeam, c.w.blocks);
  __syncthreads();
  int items = 0;  // the bits of all numbers of items
  for (int row = static_cast<int>(threadIdx.x); row < c.p.num_rows; row += kThreads) {
    const ColumnsRow r = load_row(c.p, row);
    if (!is_of_class(c.p, row, r)) continue;
    const int runs = has_runs(c) ? runs_of(r) : 1;
    items |= items_of(c, runs > 1 ? run_of_row(r, 0) : r);
    if (runs > 1) items |= items_of(c, run_of_row(r, runs - 1));
  }
  items = static_cast<int>(__reduce_or_sync(~0U, static_cast<unsigned>(items)));
  if (threadIdx.x % 32 == 0 && items != 0) {
    atomicMin(&c.shared.items, items & -items);
  }
  __syncthreads();
  // A power of two.
  const int most = c.shared.items;
  while (c.team * 2 <= most) c.team *= 2;
  __syncthreads();
}

/// Lists all entries.
__device__ inline void list_entries(Context& c) {
  const bool has_tiles = uses_prefixes(c.p);
  if (has_tiles) list_tiles(c);
  for (int base = 0; base < c.p.num_rows; base += kThreads) {
    const int row = base + static_cast<int>(threadIdx.x);
    const bool is_row = row < c.p.num_rows;
    const ColumnsRow r = is_row ? load_row(c.p, row) : ColumnsRow{};
    const bool is_in =
        is_row && is_of_class(c.p, row, r) && !(has_tiles && c.p.shared_tokens[row] > 0);
    const ColumnsRow its = has_runs(c) && is_in ? run_of_row(r, 0) : r;
    append_entries(c, is_in, row, is_in ? slabs_of(c, its) : 0, is_in ? items_of(c, its) : 0);
    if (has_runs(c)) list_runs(c, base, is_in ? runs_of(r) : 0);
  }
  if (threadIdx.x == 0 && c.num_entries <= c.max_entries) {
    c.entries.first_unit[c.num_entries] = c.total;
  }
  __syncthreads();
  c.num_entries = min(c.num_entries, c.max_entries);
  c.total = c.entries.first_unit[c.num_entries];
}

/// Returns the slabs of a fixed part of an entry, where most have `length`. The runs of a row that
/// has several are not cut: they are many items, and their parts would take much memory.
__device__ inline int part_slabs_of(const Context& c, int entry, int length) {
  constexpr int kWhole = 1 << 29;
  const bool is_run = has_runs(c) && load_row(c.p, batch_row(c, entry)).q_len > kRunTokens;
  return is_run ? kWhole : length;
}

/// Returns the partial results of an entry with parts of `slabs_of_part` slabs.
__device__ inline int slots_of(const Context& c, int entry, int slabs_of_part) {
  const int slabs = c.entries.slabs[entry];
  const ColumnsRow r = row_of(c, entry);
  const int length = part_slabs_of(c, entry, slabs_of_part);
  const int parts = parts_of(first_seen(c.p, r) / c.shape.slab_tokens, slabs, length);
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

/// The place of a unit: slab `slab` of item `item` of an entry, counted in items of a team.
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
