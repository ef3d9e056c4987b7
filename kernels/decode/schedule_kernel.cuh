#pragma once

/// @file
/// How thread blocks make a decode schedule. They decide the length of parts, and the row and place
/// of each part. They read only the lengths of all rows. A thread first handles a row, then a part.
/// Rows are taken in tiles of kThreads rows; most steps are one tile. Where there are many parts,
/// several thread blocks compute the same and each writes its share, because one multiprocessor
/// needs about 2 us to write 1,024 parts. Included by schedule.cu, and by a test that runs it on
/// the CPU.

#include "kernels/decode/schedule.cuh"
#include "kernels/decode/schedule_choice.cuh"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace kvarena::kernels::decode_schedule {

/// Counts the parts of each size class of several tiles, and finds the first place of each. Long
/// parts come first, so that short parts fill the end (longest processing time first; Graham,
/// 1969).
__device__ inline void begin_classes(const Context& c, const Row& own, const Rank& own_rank,
                                     const Sizes& sizes) {
  int* const next = c.shared.next;
  for_each_tile(c, own, [&](const Row& row, int base) {
    const Rank rank = base == 0 ? own_rank : rank_of(c, row, sizes);
    if (rank.is_first && rank.peers_parts > 0) atomicAdd(&next[rank.size_class], rank.peers_parts);
  });
  __syncthreads();
  if (warp_of() != 0) return;
  // Lane `l` has class kSizeClasses - 1 - l: classes in their order.
  const int size_class = kSizeClasses - 1 - lane_of();
  const int parts = size_class >= 0 ? next[size_class] : 0;
  int sum = parts;
  for (int offset = 1; offset < 16; offset *= 2) {
    const int other = __shfl_up_sync(~0U, sum, offset);
    if (lane_of() >= offset) sum += other;
  }
  if (size_class >= 0) next[size_class] = sum - parts;
  if (size_class == 0) c.shared.total = sum;
}

/// Returns the parts of all size classes of longer parts than a class. Lane `l` gives warp `l`.
__device__ inline int longer_parts(const Places& places, int size_class, int lane) {
  int parts = 0;
#pragma unroll
  for (int other = 1; other < kSizeClasses; ++other) {
    if (other > size_class) parts += places.warp_parts[other][lane];
  }
  return __reduce_add_sync(~0U, parts);
}

/// Sums up the parts of a tile's rows, by size class and over all, into the places of each warp's
/// rows. Returns whether no row of the tile is cut.
__device__ inline bool sum_tile(const Context& c, const Rank& rank) {
  Places& places = c.shared.places;
  auto& warp_parts = places.warp_parts;
  const int warp = warp_of();
  const int lane = lane_of();
  if (lane < kSizeClasses) warp_parts[lane][warp] = 0;
  __syncwarp();
  if (rank.is_first) warp_parts[rank.size_class][warp] = rank.peers_parts;
  if (lane == 0) warp_parts[kSizeClasses][warp] = rank.warp_parts;
  const bool is_whole = __syncthreads_and(rank.cut.parts <= 1 ? 1 : 0) != 0;
  if (warp <= kSizeClasses) {  // warp `w` sums up class w; the last one sums up the tile
    const int parts = warp_parts[warp][lane];
    int sum = parts;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(~0U, sum, offset);
      if (lane >= offset) sum += other;
    }
    int first = 0;
    if (warp < kSizeClasses) {
      first = c.is_one_tile() ? longer_parts(places, warp, lane) : c.shared.next[warp];
    }
    places.warp_first[warp][lane] = first + sum - parts;
    __syncwarp();
    if (lane == 31) {
      if (warp == kSizeClasses) {
        places.first[kThreads] = sum;
        if (c.is_one_tile()) c.shared.total = sum;
      } else if (!c.is_one_tile()) {
        c.shared.next[warp] = first + sum;
      }
    }
  }
  __syncthreads();
  return is_whole;
}

/// Returns part `part` of a row whose first part has place `place`.
__device__ inline DecodePart part_of(const Row& row, const RowCut& cut, int place, int part) {
  return {row.first_q,
          row.first_unit + min(row.count, cut.units * part),
          row.first_unit + min(row.count, cut.units * (part + 1)),
          part,
          static_cast<std::uint32_t>(cut.parts),
          static_cast<std::uint32_t>(row.q_len),
          place,
          row.seq_len,
          row.table_row};
}

/// Writes the part of each lane that has one to its place. Two neighbouring lanes write both halves
/// of a part at once, because a store of few bytes at many places takes long. All lanes call it.
__device__ inline void write_parts(const Context& c, const DecodePart& part, int place,
                                   bool has_part) {
  if (!__any_sync(~0U, has_part)) return;
  int4 halves[2];
  memcpy(halves, &part, sizeof(part));
  const bool is_odd = lane_of() % 2 != 0;
  const int own = has_part ? place : -1;
  const int other = __shfl_xor_sync(~0U, own, 1);
  int4 mine = is_odd ? halves[1] : halves[0];
  int4 given = is_odd ? halves[0] : halves[1];
  given.x = __shfl_xor_sync(~0U, given.x, 1);
  given.y = __shfl_xor_sync(~0U, given.y, 1);
  given.z = __shfl_xor_sync(~0U, given.z, 1);
  given.w = __shfl_xor_sync(~0U, given.w, 1);
  auto* const parts =
      reinterpret_cast<int4*>(static_cast<char*>(c.p.workspace) + c.w.parts) + (is_odd ? 1 : 0);
  // First the parts of even lanes, then those of odd ones.
  const int even = is_odd ? other : own;
  const int odd = is_odd ? own : other;
  if (even >= 0) parts[2 * even] = is_odd ? given : mine;
  if (odd >= 0) parts[2 * odd] = is_odd ? mine : given;
}

/// Writes this thread block's share of the parts of a tile of rows: warp `w` has the share of warp
/// w * gridDim.x + blockIdx.x of all thread blocks.
__device__ inline void write_tile(const Context& c, const Row& row, const Rank& rank) {
  const bool is_whole = sum_tile(c, rank);
  Places& places = c.shared.places;
  const int t = static_cast<int>(threadIdx.x);
  const int place = places.warp_first[rank.size_class][warp_of()] + rank.parts_before_peer;
  // A row that does not fit is left out whole. So are all rows behind it.
  const bool fits = place + rank.cut.parts <= c.w.max_parts;
  if (rank.cut.parts > 0 && !fits) atomicMin(&c.shared.end, place);
  const int blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x);
  if (is_whole) {
    if (warp_of() % blocks != block) return;
    write_parts(c, part_of(row, rank.cut, place, 0), place, rank.cut.parts == 1 && fits);
    return;
  }
  places.first[t] = places.warp_first[kSizeClasses][warp_of()] + rank.parts_before;
  places.place[t] = place;
  places.row[t] = row;
  places.cut[t] = rank.cut;
  __syncthreads();
  const int all = places.first[kThreads];
#pragma unroll 1
  for (int base = (warp_of() * blocks + block) * 32; base < all; base += kThreads * blocks) {
    const int i = min(base + lane_of(), all - 1);
    const int at = row_holding(places.first, i);
    const RowCut cut = places.cut[at];
    const int first = places.place[at];
    const int part = i - places.first[at];
    const bool has_part = base + lane_of() < all && first + cut.parts <= c.w.max_parts;
    write_parts(c, part_of(places.row[at], cut, first, part), first + part, has_part);
  }
}

/// Makes the schedule of a step. The number of warps of a thread block of attention, or of a
/// cluster of them, is a constant, so that the compiler divides by it with a multiplication.
template <int kAttentionWarps>
__device__ inline void make_schedule(const DecodeScheduleParams& p, const DecodeWorkspace& w,
                                     CutShape shape, const Limits& limits) {
  __shared__ Shared shared;
  shape.warps = kAttentionWarps;
  const Context c{p, w, shape, limits, shared};
  const int thread = static_cast<int>(threadIdx.x);
  const Row own = load_row(p, thread);
  const int at = thread * kBinsPerThread;
  reinterpret_cast<uint2&>(shared.choice.rows_up_to[at]) = {0, 0};
  reinterpret_cast<uint2&>(shared.choice.missing_up_to[at]) = {0, 0};
  if (thread < kSizeClasses) shared.next[thread] = 0;
  if (thread == 0) shared.end = std::numeric_limits<int>::max();
  const Extent extent = extent_of(c, own);
  const PartLength length =
      p.fixed_parts ? choose_fixed_length(c, own) : choose_length(c, own, extent);
  const int longest_part = max(length.units, part_units(length, shape.warps, extent.longest));
  const Sizes sizes{length, max(longest_part, length.short_units)};
  const Rank own_rank = rank_of(c, own, sizes);
  if (!c.is_one_tile()) begin_classes(c, own, own_rank, sizes);
  for_each_tile(c, own, [&](const Row& row, int base) {
    write_tile(c, row, base == 0 ? own_rank : rank_of(c, row, sizes));
    __syncthreads();  // before the next tile uses the same memory
  });
  if (thread == 0 && blockIdx.x == 0) {
    *static_cast<DecodeHeader*>(p.workspace) = {min(shared.total, shared.end), 0, 0, length.units};
  }
}

/// The warps of a thread block of attention, or of a cluster of them, that there is a schedule for.
using AttentionWarps = std::integer_sequence<int, 1, 2, 3, 4, 6, 8, 12, 64, 80, 96>;

/// Returns the thread blocks of a launch: one for each 256 parts, at most 32.
inline int blocks_for(const DecodeWorkspace& workspace) noexcept {
  return std::clamp((workspace.max_parts + 255) / 256, 1, 32);
}

/// Returns the numbers that the host computes.
inline Limits limits_of(const DecodeLimits& limits, const CutShape& cut) noexcept {
  Limits most{.fixed = fixed_length(limits), .most_parts = {}};
  for (int wave = 0; wave < kMaxWaves; ++wave) {
    most.most_parts[wave] = parts_of_waves(cut, wave + 1);
  }
  return most;
}

}  // namespace kvarena::kernels::decode_schedule
