#pragma once

/// @file
/// The choice of the length of parts, by the thread block that makes a decode schedule. Included by
/// schedule_kernel.cuh.

#include "kernels/decode/schedule.cuh"

#include <limits>

namespace kvarena::kernels::decode_schedule {

/// Returns the sum of a value over the thread block, to all threads.
__device__ inline std::int64_t block_sum(Shared& shared, std::int64_t value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
  __syncthreads();  // the sum before has been read
  if (lane_of() == 0) shared.sums[warp_of()] = value;
  __syncthreads();
  value = shared.sums[lane_of()];
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
  return value;
}

/// Chooses the length of fixed parts: always the same, unless the parts do not fit the workspace.
__device__ inline PartLength choose_fixed_length(const Context& c, const Row& own) {
  PartLength length = c.limits.fixed;
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
  // More than usual, so that the length tells which way rows were cut.
  const int units_of_more = length.units + c.shape.warps;
  length.units = max(divide_up(units_of_part, c.shape.warps) * c.shape.warps, units_of_more);
  length.short_row = length.short_units = 0;
  return length;
}

/// Adds up the values of a warp's lanes, up to the own one.
__device__ inline void sum_lanes(unsigned (&values)[3]) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
#pragma unroll
    for (unsigned& value : values) {
      const unsigned other = __shfl_up_sync(~0U, value, offset);
      if (lane_of() >= offset) value += other;
    }
  }
}

/// Turns the histograms into running sums. Thread `t` has entries 2 t and 2 t + 1. Entries past
/// `longest` are not read later.
__device__ inline void sum_bins(const Context& c, int longest) {
  Choice& choice = c.shared.choice;
  const int at = static_cast<int>(threadIdx.x) * kBinsPerThread;
  const bool is_read = warp_of() * 32 * kBinsPerThread <= longest;
  auto& rows = reinterpret_cast<uint2&>(choice.rows_up_to[at]);
  auto& steps = reinterpret_cast<uint2&>(choice.steps_up_to[at]);
  auto& missing = reinterpret_cast<uint2&>(choice.missing_up_to[at]);
  uint2 its[3];
  unsigned own[3];
  unsigned sums[3];
  if (is_read) {
    its[0] = rows;
    its[1] = {its[0].x * at, its[0].y * (at + 1)};
    its[2] = missing;
#pragma unroll
    for (int i = 0; i < 3; ++i) sums[i] = own[i] = its[i].x + its[i].y;
    sum_lanes(sums);
    if (lane_of() == 31) {
#pragma unroll
      for (int i = 0; i < 3; ++i) choice.warp_sums[i][warp_of()] = sums[i];
    }
  }
  __syncthreads();
  if (is_read) {
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      const unsigned before = lane_of() < warp_of() ? choice.warp_sums[i][lane_of()] : 0;
      sums[i] += __reduce_add_sync(~0U, before) - own[i];
    }
    rows = {sums[0] + its[0].x, sums[0] + own[0]};
    steps = {sums[1] + its[1].x, sums[1] + own[1]};
    missing = {sums[2] + its[2].x, sums[2] + own[2]};
  }
  __syncthreads();
}

/// Most parts of the longest row that a thread counts alone.
inline constexpr int kPartsOfThread = 16;

/// Counts the parts of each length from `least` on. Short lengths, of which the longest row has
/// many parts, are counted by a warp each; the others by a thread each.
__device__ inline void count_all_parts(const Context& c, const StepCounts& counts, int least) {
  Choice& choice = c.shared.choice;
  const int rows = counts.rows();
  const int shorts = counts.longest / kPartsOfThread;
#pragma unroll 1
  for (int length = least + warp_of(); length <= shorts; length += kWarps) {
    int parts = 0;
    for (int at = length * (lane_of() + 1); at < counts.longest; at += length * 32) {
      parts += rows - counts.rows_up_to[at];
    }
    parts = rows + __reduce_add_sync(~0U, parts);
    if (lane_of() == 0) choice.parts[length] = parts;
  }
  for (int length = max(least, shorts + 1) + static_cast<int>(threadIdx.x);
       length <= counts.longest; length += kThreads) {
    choice.parts[length] = count_parts(counts, length);
  }
  if (threadIdx.x == 0) choice.parts[least - 1] = std::numeric_limits<int>::max();
}

/// Finds the candidate of each number of waves. A thread estimates the cost of a length if it is a
/// candidate.
__device__ inline void find_candidates(const Context& c, const StepCounts& counts) {
  Choice& choice = c.shared.choice;
  const int rows = counts.rows();
  const int smallest = min(counts.longest, smallest_length(c.shape, counts.bits));
  // Shorter lengths have more parts than any number of waves.
  const float few = static_cast<float>(counts.steps()) * 0.999F /
                    static_cast<float>(max(1, c.limits.most_parts[kMaxWaves - 1]));
  const int least = max(smallest, static_cast<int>(few));
  count_all_parts(c, counts, least);
  __syncthreads();
  for (int length = least + static_cast<int>(threadIdx.x); length <= counts.longest;
       length += kThreads) {
    const int parts = choice.parts[length];
    const int parts_before = choice.parts[length - 1];
    unsigned its_waves = 0;
#pragma unroll
    for (int wave = 0; wave < kMaxWaves; ++wave) {
      const int most = c.limits.most_parts[wave];
      const bool is_shortest = parts <= most && parts_before > most;
      if (most > rows ? is_shortest : length == counts.longest) its_waves |= 1U << wave;
    }
    if (its_waves == 0) continue;
    const Candidate candidate{cost_of(counts, c.shape, length, parts), length};
#pragma unroll
    for (int wave = 0; wave < kMaxWaves; ++wave) {
      if ((its_waves >> wave & 1) != 0) c.shared.candidates[wave] = candidate;
    }
  }
  __syncthreads();
}

/// Chooses the part length that costs least.
__device__ inline PartLength choose_length(const Context& c, const Row& own, const Extent& extent) {
  const int warps = c.shape.warps;
  if (extent.rows == 0) return {warps, false};
  const int longest = divide_up(extent.longest, warps);
  // With so many rows, no row is cut.
  if (extent.rows >= c.limits.most_parts[kMaxWaves - 1]) return {longest * warps, false};
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
  find_candidates(c, counts);
  Candidate candidates[kMaxWaves];
#pragma unroll
  for (int i = 0; i < kMaxWaves; ++i) candidates[i] = c.shared.candidates[i];
  Candidate best = candidates[0];
#pragma unroll
  for (int i = 1; i < kMaxWaves; ++i) {
    if (candidates[i].cost < best.cost) best = candidates[i];
  }
  return {min(best.steps << bits, longest) * warps, false};
}

}  // namespace kvarena::kernels::decode_schedule
