#pragma once

/// @file
/// The schedule of the columns kernel, made by one thread block. The units of all rows are cut
/// evenly over the thread blocks of the attention kernel, and each gets a list of segments.
/// Included by columns_schedule.cu, and by a test that runs it on the CPU.

#include "kernels/columns/columns_segments.cuh"

#include <algorithm>

namespace kvarena::kernels::columns_schedule {

// The cost of a unit that waits for the memory alone, of a unit of a tile with most columns in use,
// which is bound by the products where a multiprocessor has one thread block, and of the begin and
// end of a member's own item.
inline constexpr int kUnitCost = 16;
inline constexpr int kFullTileCost = 24;
inline constexpr int kMemberCost = 16;

/// Finds the costs of units: those of tiles, of members, and of other rows.
__device__ inline void find_costs(Context& c) {
  const int* const first_unit = c.entries.first_unit;
  const int members = min(c.num_tiles + c.num_members, c.num_entries);
  c.end_unit[0] = first_unit[min(c.num_tiles, c.num_entries)];
  c.end_unit[1] = first_unit[members];
  c.end_unit[2] = c.total;
  for (int& cost : c.unit_cost) cost = kUnitCost;
  if (c.num_tiles == 0) return;
  const int columns = c.tile(c.num_tiles - 1).end_token * c.group();
  if (c.shape.per_sm == 1 && columns > c.num_tiles * c.shape.columns / 2) {
    c.unit_cost[0] = kFullTileCost;
  }
  const int units = c.end_unit[1] - c.end_unit[0];
  const int items = c.num_members * c.p.limits.num_kv_heads;
  if (units > 0) {
    c.unit_cost[1] += static_cast<int>(static_cast<long long>(kMemberCost) * items / units);
  }
}

/// Returns the cost of the units of class `i`.
__device__ inline long long class_cost(const Context& c, int i) {
  return static_cast<long long>(c.unit_cost[i]) * (c.end_unit[i] - (i > 0 ? c.end_unit[i - 1] : 0));
}

/// Chooses the thread blocks that get units of tiles: half of them, or more if their share of the
/// cost is larger. The results of tiles are complete early then, and a multiprocessor has one block
/// that computes beside one that waits for the memory.
__device__ inline void choose_tile_blocks(Context& c) {
  c.runs = c.blocks;
  if (c.num_tiles == 0) return;
  const long long tiles = class_cost(c, 0);
  const long long all = max(1LL, tiles + class_cost(c, 1) + class_cost(c, 2));
  const auto least = static_cast<int>(min((tiles * c.blocks + all - 1) / all, 1LL * c.blocks));
  c.tile_blocks = max(max(least, (c.blocks + 1) / 2), 1);
  c.runs = c.tile_blocks + c.blocks;
}

/// Returns the first unit of thread block `block` of `blocks`, when their units are cut evenly.
__device__ inline int even_bound(const Context& c, int block, int blocks) {
  return static_cast<int>(static_cast<long long>(block) * c.total / blocks);
}

/// Returns the first unit of run `run`. Runs of tiles have as many units each. After them, each
/// thread block gets a run of rows: as many that its cost is that of the others.
__device__ inline int even_run(const Context& c, int run) {
  if (c.num_tiles == 0) return even_bound(c, run, c.blocks);
  const int tile_units = c.end_unit[0];
  if (run < c.tile_blocks) {
    return static_cast<int>(static_cast<long long>(run) * tile_units / c.tile_blocks);
  }
  const int block = run - c.tile_blocks;
  if (block == c.blocks) return c.total;
  const long long rows = class_cost(c, 1) + class_cost(c, 2);
  const long long all = class_cost(c, 0) + rows;
  // What the thread blocks before this one cost, without their tiles. It grows with the block.
  const long long with_tiles = all * block * c.tile_blocks;
  const long long tiles = class_cost(c, 0) * min(block, c.tile_blocks) * c.blocks;
  long long cost = min((with_tiles - tiles) / (1LL * c.blocks * c.tile_blocks), rows);
  if (cost < class_cost(c, 1)) return tile_units + static_cast<int>(cost / c.unit_cost[1]);
  cost -= class_cost(c, 1);
  return c.end_unit[1] + static_cast<int>(cost / c.unit_cost[2]);
}

/// Returns the cost of thread block `block` of `blocks`, in slabs: its units, and what each cut
/// segment costs. An item of more than 32 parts is combined in two rounds.
__device__ inline int cost_of(const Context& c, int block, int blocks) {
  // The time to write and combine a part is that of 320 tokens with head_dim 128, about 5 us.
  // Parts of latents are larger, and a kernel of their own combines them: about 8 us.
  const int part_cost = is_latent(c) ? 4 : 320 * 128 / (c.shape.slab_tokens * c.p.limits.head_dim);
  const int first = even_bound(c, block, blocks);
  const int units = even_bound(c, block + 1, blocks) - first;
  int cost = units;
  Unit unit = unit_at(c, first);
  if (unit.slab > 0 || unit.slabs > units) cost += part_cost + (unit.slabs > 32 * units ? 4 : 0);
  if (unit.slabs - unit.slab < units) {
    unit = unit_at(c, first + units - 1);
    if (unit.slab + 1 < unit.slabs) cost += part_cost;
  }
  return cost;
}

/// Chooses the number of thread blocks that get work: up to an eighth fewer than there are, when
/// the most expensive one is then cheaper. Equal rows get whole items or equal parts so. Warp `w`
/// tries `w` fewer.
__device__ inline int choose_blocks(const Context& c) {
  const int most = max(1, min(c.w.blocks / c.team, (c.total + 1) / 2));
  if (c.part_slabs > 0 || c.num_tiles > 0 || c.total == 0) return most;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int tried = most - warp;
  int worst = 0;
  if (tried < 1 || warp > most / 8) {
    worst = 0x7fffffff;
  } else {
    for (int block = static_cast<int>(threadIdx.x) % 32; block < tried; block += 32) {
      worst = max(worst, cost_of(c, block, tried));
    }
  }
  worst = __reduce_max_sync(~0U, worst);
  if (threadIdx.x % 32 == 0) c.shared.cost[warp] = worst;
  __syncthreads();
  int best = 0;
  for (int i = 1; i < kWarps; ++i) {
    if (c.shared.cost[i] < c.shared.cost[best]) best = i;
  }
  return most - best;
}

/// Slabs begin .. end - 1 of an item.
struct Span {
  int begin;
  int end;
};
/// Returns the fixed part of a unit. Without fixed parts, it is the whole item.
__device__ inline Span part_span(const Context& c, const Unit& unit) {
  if (c.part_slabs == 0) return {0, unit.slabs};
  const int first = first_slab(c, unit);
  const int length = part_slabs_of(c, unit.entry, c.part_slabs);
  const int begin = (first + unit.slab) / length * length - first;
  return {max(0, begin), min(unit.slabs, begin + length)};
}

/// Returns the first unit of a run: an even cut, moved to the end of a fixed part, or to the end of
/// an item when that is a slab away.
__device__ inline int choose_bound(const Context& c, int run) {
  const int x = even_run(c, run);
  const bool begins_class = run == 0 || run == c.runs || (c.num_tiles > 0 && run == c.tile_blocks);
  if (begins_class || x >= c.total) return x;
  const Unit unit = unit_at(c, x);
  if (c.part_slabs > 0) {
    const Span span = part_span(c, unit);
    const int down = unit.slab - span.begin;
    const int up = span.end - unit.slab;
    return down <= up ? x - down : x + up;
  }
  if (unit.slab <= 1 && unit.slab < unit.slabs / 4) return x - unit.slab;
  if (unit.slabs - unit.slab <= 1 && unit.slabs >= 4) return x + unit.slabs - unit.slab;
  return x;
}

/// Calls use(unit, first, length) for each segment of units begin .. end - 1: `length` units from
/// `unit`, which is number `first`.
template <class Use>
__device__ void for_each_segment(const Context& c, int begin, int end, Use&& use) {
  if (begin >= end) return;
  Unit unit = unit_at(c, begin);
  for (int x = begin; x < end;) {
    const int length = min(part_span(c, unit).end - unit.slab, end - x);
    use(unit, x, length);
    x += length;
    if (x < end) unit = unit_after(c, unit, x);
  }
}

/// Counts the segments of all runs and numbers the parts of cut items. Thread `r` counts those of
/// run `r`. The first segment of a thread block has its number; the others come after those.
__device__ inline void count_segments(const Context& c, int run) {
  const int begin = run < c.runs ? c.shared.bound[run] : 0;
  const int end = run < c.runs ? c.shared.bound[run + 1] : 0;
  int count = 0;
  int cut = 0;
  for_each_segment(c, begin, end, [&](const Unit& unit, int, int length) {
    ++count;
    cut += length < unit.slabs ? 1 : 0;
  });
  if (run < c.runs) c.shared.segments[run] = count;
  int first_cut = 0;
  int all = 0;
  Scan(c.shared.scratch.scan).ExclusiveSum(cut, first_cut, all);
  if (run < c.runs) c.shared.first_cut[run] = first_cut;
  if (run == 0) c.shared.first_cut[c.runs] = all;
  __syncthreads();
  const int block = run - c.tile_blocks;
  const bool is_first =
      c.tile_blocks == 0 || block < 0 || block >= c.tile_blocks || c.shared.segments[block] == 0;
  int next = 0;
  Scan(c.shared.scratch.scan).ExclusiveSum(max(0, count - (is_first ? 1 : 0)), next);
  if (run < c.runs) c.shared.next[run] = c.w.blocks + next * c.team;
  __syncthreads();
}

/// Writes the lists of segments of the thread blocks that are in teams of two or more. A thread
/// writes those of a thread block.
__device__ inline void write_team_segments(const Context& c) {
  const int block = static_cast<int>(threadIdx.x);
  if (block >= c.w.blocks) return;
  auto* const segments =
      reinterpret_cast<ColumnsSegment*>(static_cast<char*>(c.p.workspace) + c.w.segments);
  const int run = block / c.team;
  const int member = block % c.team;
  const int count = run < c.runs ? c.shared.segments[run] : 0;
  if (count == 0) {
    ColumnsSegment none{};
    none.next = -1;
    segments[block] = none;
    return;
  }
  int next = c.shared.next[run] + member * (count - 1);
  int at = block;
  const int end = c.shared.bound[run + 1];
  for_each_segment(c, c.shared.bound[run], end, [&](const Unit& unit, int x, int length) {
    ColumnsSegment segment = segment_of(c, {unit, x, length, run, member});
    segment.next = x + length < end ? next : -1;
    segments[at] = segment;
    at = next++;
  });
}

/// Writes the lists of segments. Thread `r` writes those of run `r`. The run of a thread block's
/// tiles is followed by that of its rows.
__device__ inline void write_segments(const Context& c) {
  const int run = static_cast<int>(threadIdx.x);
  count_segments(c, run);
  if (c.team > 1) return write_team_segments(c);
  auto* const segments =
      reinterpret_cast<ColumnsSegment*>(static_cast<char*>(c.p.workspace) + c.w.segments);
  const bool has_tiles = run < c.tile_blocks;
  const int block = has_tiles ? run : run - c.tile_blocks;
  if (block >= c.w.blocks) return;
  const int count = run < c.runs ? c.shared.segments[run] : 0;
  const bool follows = !has_tiles && block < c.tile_blocks && c.shared.segments[block] > 0;
  if (count == 0) {
    if (has_tiles || follows) return;
    ColumnsSegment none{};
    none.next = -1;
    segments[block] = none;
    return;
  }
  const int rows = has_tiles ? c.tile_blocks + block : c.runs;  // the run after this one
  const int after = rows < c.runs && c.shared.segments[rows] > 0 ? c.shared.next[rows] : -1;
  int next = c.shared.next[run];
  int at = follows ? next++ : block;
  const int end = c.shared.bound[run + 1];
  for_each_segment(c, c.shared.bound[run], end, [&](const Unit& unit, int x, int length) {
    ColumnsSegment segment = segment_of(c, {unit, x, length, run, 0});
    segment.next = x + length < end ? next : after;
    segments[at] = segment;
    at = next++;
  });
}

/// Makes the schedule of a step. `memory` is shared memory: 3 * max_entries + 1 integers.
__device__ inline void make_schedule(const ColumnsScheduleParams& p, const ColumnsWorkspace& w,
                                     const PrefixPlan& plan, ColumnsShape shape, int max_entries,
                                     int* memory) {
  __shared__ Shared shared;
  auto* const slots = reinterpret_cast<int*>(static_cast<char*>(p.workspace) + w.first_slots);
  const Entries entries{memory, memory + max_entries, memory + 2 * max_entries, slots};
  Context c{p, w, shape, entries, shared, max_entries, plan, 0, 0, 0, 0, 0, {}, {}, 0, 0, 0, 1};
  // The counters return to 0 by themselves, but their number depends on the limits.
  auto* const counters = reinterpret_cast<int*>(static_cast<char*>(p.workspace) + w.counters);
  for (int i = static_cast<int>(threadIdx.x); i < w.max_slots; i += kThreads) counters[i] = 0;
  choose_team(c);
  list_entries(c);
  if (threadIdx.x == 0) {
    const int members = min(c.num_members, max(0, c.num_entries - c.num_tiles));
    *reinterpret_cast<int*>(static_cast<char*>(p.workspace) + w.members) =
        members * p.limits.num_kv_heads;
  }
  find_costs(c);
  if (p.fixed_parts) {
    c.part_slabs = choose_part_slabs(c);
    number_slots(c);
  }
  c.blocks = choose_blocks(c);
  choose_tile_blocks(c);
  for (int run = static_cast<int>(threadIdx.x); run <= c.runs; run += kThreads) {
    shared.bound[run] = c.total == 0 ? 0 : choose_bound(c, run);
  }
  __syncthreads();
  write_segments(c);
}

/// Returns the entries that the schedule has room for.
inline int most_entries(const ColumnsScheduleParams& p) noexcept {
  // A row may have several runs.
  const int rows =
      p.max_q_len > p.limits.q_len ? p.limits.max_rows : std::min(p.num_rows, p.limits.max_rows);
  return rows + std::min(p.num_rows, p.limits.shared_rows);
}

}  // namespace kvarena::kernels::columns_schedule
