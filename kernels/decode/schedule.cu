// The schedule of a step, made on the device by one thread block. It decides the length of parts,
// and the row and place of each part. It reads only the lengths of all rows. A thread first handles
// a row, then a part. Rows are taken in tiles of kThreads rows; most steps are one tile.

#include "kernels/decode/schedule.cuh"

#include "kernels/common/launch_checks.h"
#include "kernels/common/load_kernel.h"

#include <limits>

namespace kvarena::kernels {
namespace decode_schedule {
namespace {

/// Returns the sum of a value over the thread block, to all threads.
__device__ std::int64_t block_sum(Shared& shared, std::int64_t value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
  __syncthreads();  // the sum before has been read
  if (lane_of() == 0) shared.sums[warp_of()] = value;
  __syncthreads();
  value = shared.sums[lane_of()];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
  return value;
}

/// Chooses the length of fixed parts: always the same, unless the parts do not fit the workspace.
__device__ PartLength choose_fixed_length(const Context& c, const Row& own) {
  PartLength length{c.fixed_units, true};
  std::int64_t parts = 0;
  std::int64_t units = 0;
  std::int64_t rows = 0;
  for_each_tile(c, own, [&](const Row& row, int) {
    parts += cut_row(length, c.shape.warps, row.count).parts;
    units += max(0, row.count);
    rows += row.count != kSkippedRow ? 1 : 0;
  });
  if (block_sum(c.shared, parts) <= c.w.max_parts) return length;
  const std::int64_t room = max(std::int64_t{1}, c.w.max_parts - block_sum(c.shared, rows));
  const std::int64_t least = block_sum(c.shared, units) / room + 1;
  const int units_of_part = static_cast<int>(min(least, std::int64_t{1} << 28));
  length.units = divide_up(units_of_part, c.shape.warps) * c.shape.warps;
  return length;
}

/// Adds up the values of a warp's lanes, up to the own one.
__device__ void sum_lanes(unsigned (&values)[3]) {
  for (int offset = 1; offset < 32; offset *= 2) {
    for (unsigned& value : values) {
      const unsigned other = __shfl_up_sync(~0U, value, offset);
      if (lane_of() >= offset) value += other;
    }
  }
}

/// Turns the histograms into running sums. Thread `t` has entries 2 t and 2 t + 1. Entries past
/// `longest` are not read later.
__device__ void sum_bins(const Context& c, int longest) {
  Choice& choice = c.shared.choice;
  const int at = static_cast<int>(threadIdx.x) * kBinsPerThread;
  auto& rows = reinterpret_cast<uint2&>(choice.rows_up_to[at]);
  auto& steps = reinterpret_cast<uint2&>(choice.steps_up_to[at]);
  auto& missing = reinterpret_cast<uint2&>(choice.missing_up_to[at]);
  const uint2 its_rows = rows;
  const uint2 its_missing = missing;
  const uint2 its_steps = {its_rows.x * at, its_rows.y * (at + 1)};
  const unsigned own[] = {its_rows.x + its_rows.y, its_steps.x + its_steps.y,
                          its_missing.x + its_missing.y};
  unsigned sums[] = {own[0], own[1], own[2]};
  if (warp_of() * 32 * kBinsPerThread <= longest) sum_lanes(sums);
  if (lane_of() == 31) {
    for (int i = 0; i < 3; ++i) choice.warp_sums[i][warp_of()] = sums[i];
  }
  __syncthreads();
  for (int i = 0; i < 3; ++i) {
    const unsigned before = lane_of() < warp_of() ? choice.warp_sums[i][lane_of()] : 0;
    sums[i] += __reduce_add_sync(~0U, before) - own[i];
  }
  rows = {sums[0] + its_rows.x, sums[0] + own[0]};
  steps = {sums[1] + its_steps.x, sums[1] + own[1]};
  missing = {sums[2] + its_missing.x, sums[2] + own[2]};
  __syncthreads();
}

/// Chooses the part length that costs least. Warp `w` examines w + 1 waves.
__device__ PartLength choose_length(const Context& c, const Row& own, const Extent& extent) {
  const int warps = c.shape.warps;
  if (extent.rows == 0) return {warps, false};
  const int longest = divide_up(extent.longest, warps);
  // With so many rows, no row is cut.
  if (extent.rows >= parts_of_waves(c.shape, kMaxWaves)) return {longest * warps, false};
  Choice& choice = c.shared.choice;
  const int bits = step_bits(longest);
  for_each_tile(c, own, [&](const Row& row, int) {
    if (row.count > 0) {
      const int at = steps_of(divide_up(row.count, warps), bits);
      const int missing = missing_units(row.count, warps);
      atomicAdd(&choice.rows_up_to[at], 1);
      if (missing > 0) atomicAdd(&choice.missing_up_to[at], static_cast<unsigned>(missing));
    }
  });
  __syncthreads();
  const StepCounts counts{choice.rows_up_to, choice.steps_up_to, choice.missing_up_to,
                          steps_of(longest, bits), bits};
  sum_bins(c, counts.longest);
  if (warp_of() < kMaxWaves) {
    const Candidate candidate = candidate_of(counts, c.shape, warp_of() + 1, [&](int length) {
      return __reduce_add_sync(~0U, count_parts(counts, length, lane_of(), 32));
    });
    if (lane_of() == 0) choice.candidates[warp_of()] = candidate;
  }
  __syncthreads();
  Candidate best = choice.candidates[0];
  for (int i = 1; i < kMaxWaves; ++i) {
    if (choice.candidates[i].cost < best.cost) best = choice.candidates[i];
  }
  return {min(best.steps << bits, longest) * warps, false};
}

/// Counts the parts of each size class, and finds the first place of each. Long parts come first,
/// so that short parts fill the end (longest processing time first; Graham, 1969).
__device__ void begin_classes(const Context& c, const Row& own, const Rank& own_rank,
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

/// Sums up the parts of a tile's rows, by size class and over all, into the places of each warp's
/// rows. Returns whether no row of the tile is cut.
__device__ bool sum_tile(const Context& c, const Rank& rank) {
  auto& warp_parts = c.shared.places.warp_parts;
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
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(~0U, sum, offset);
      if (lane >= offset) sum += other;
    }
    const int first = warp < kSizeClasses ? c.shared.next[warp] : 0;
    __syncwarp();
    warp_parts[warp][lane] = first + sum - parts;
    int& end = warp < kSizeClasses ? c.shared.next[warp] : c.shared.places.first[kThreads];
    if (lane == 31) end = first + sum;
  }
  __syncthreads();
  return is_whole;
}

/// Writes part `part` of a row whose first part has place `place`, if the row fits.
__device__ void write_part(const Context& c, const Row& row, const RowCut& cut, int place,
                           int part) {
  if (place + cut.parts > c.w.max_parts) return;
  auto* const parts = reinterpret_cast<DecodePart*>(static_cast<char*>(c.p.workspace) + c.w.parts);
  parts[place + part] = {row.first_q,
                         row.first_unit + min(row.count, cut.units * part),
                         row.first_unit + min(row.count, cut.units * (part + 1)),
                         part,
                         static_cast<std::uint32_t>(cut.parts),
                         static_cast<std::uint32_t>(row.q_len),
                         place,
                         row.seq_len,
                         row.table_row};
}

/// Writes the parts of a tile of rows.
__device__ void write_tile(const Context& c, const Row& row, const Rank& rank) {
  const bool is_whole = sum_tile(c, rank);
  Places& places = c.shared.places;
  const int t = static_cast<int>(threadIdx.x);
  const int place = places.warp_parts[rank.size_class][warp_of()] + rank.parts_before_peer;
  // A row that does not fit is left out whole. So are all rows behind it.
  if (rank.cut.parts > 0 && place + rank.cut.parts > c.w.max_parts) {
    atomicMin(&c.shared.end, place);
  }
  if (is_whole) {
    if (rank.cut.parts == 1) write_part(c, row, rank.cut, place, 0);
    return;
  }
  places.first[t] = places.warp_parts[kSizeClasses][warp_of()] + rank.parts_before;
  places.place[t] = place;
  places.row[t] = row;
  places.cut[t] = rank.cut;
  __syncthreads();
#pragma unroll 1
  for (int i = t; i < places.first[kThreads]; i += kThreads) {
    const int at = row_holding(places.first, i);
    write_part(c, places.row[at], places.cut[at], places.place[at], i - places.first[at]);
  }
}

/// Makes the schedule of a step.
__global__ void __launch_bounds__(kThreads, 1)
    write_schedule(const __grid_constant__ DecodeScheduleParams p,
                   const __grid_constant__ DecodeWorkspace w, CutShape shape, int fixed_units) {
  __shared__ Shared shared;
  const Context c{p, w, shape, fixed_units, shared};
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
  const Sizes sizes{length, part_units(length, shape.warps, extent.longest)};
  const Rank own_rank = rank_of(c, own, sizes);
  begin_classes(c, own, own_rank, sizes);
  for_each_tile(c, own, [&](const Row& row, int base) {
    write_tile(c, row, base == 0 ? own_rank : rank_of(c, row, sizes));
    __syncthreads();  // before the next tile uses the same memory
  });
  if (thread == 0) {
    *static_cast<DecodeHeader*>(p.workspace) = {min(shared.total, shared.end), 0, 0, length.units};
  }
}

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

Status load_decode_schedule() noexcept { return load_kernels(decode_schedule::write_schedule); }

Status launch_decode_schedule(const DecodeScheduleParams& params, cudaStream_t stream) noexcept {
  if (Status s = decode_schedule::check(params); !s) return s;
  const DecodeLimits& limits = params.limits;
  const DecodeShape shape = decode_shape(limits);
  const DecodeWorkspace workspace = decode_workspace(limits);
  const CutShape cut{.warps = shape.warps,
                     .per_sm = shape.per_sm,
                     .places = limits.num_sms * shape.per_sm,
                     .heads = limits.num_kv_heads * workspace.chunks};
  decode_schedule::write_schedule<<<1, decode_schedule::kThreads, 0, stream>>>(
      params, workspace, cut, fixed_part_units(limits));
  return launch_status(cudaGetLastError());
}

}  // namespace kvarena::kernels
