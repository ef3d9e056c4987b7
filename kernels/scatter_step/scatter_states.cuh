#pragma once

/// @file
/// The kernel of staged_states.h: a thread block of scatter_parts takes one group of states. The
/// header and the first slots of a step come in one trip over the bus, the rest in a second one.

#include "kernels/scatter_step/scatter_step.cuh"
#include "kernels/scatter_step/staged_states.h"

#include <cstdint>

namespace kvarena::kernels {

/// Groups of four numbers that a thread has under way.
inline constexpr int kGroupsAtOnce = 4;

/// Returns group `group` of a list whose first `count` numbers are the step's; the others are -1.
__device__ __forceinline__ int4 cut_group(int4 words, std::int64_t group, std::int64_t count) {
  const std::int64_t left = count - group * kGroup;
  return {left > 0 ? words.x : -1, left > 1 ? words.y : -1, left > 2 ? words.z : -1,
          left > 3 ? words.w : -1};
}

/// Copies the groups `first` and later of a list of `count` numbers, and writes -1 behind them as
/// far as `before` numbers. Every thread of the block calls it.
__device__ __forceinline__ void scatter_list(const std::byte* from, void* to, std::int64_t first,
                                             std::int64_t count, std::int64_t before) {
  auto* const groups = static_cast<int4*>(to);
  const std::int64_t end = (max(count, before) + kGroup - 1) / kGroup;
  for (std::int64_t at = first + threadIdx.x; at < end; at += kGroupsAtOnce * kScatterThreads) {
    int4 words[kGroupsAtOnce];
#pragma unroll
    for (int i = 0; i < kGroupsAtOnce; ++i) {
      const std::int64_t group = at + i * kScatterThreads;
      words[i] = int4{-1, -1, -1, -1};
      if (group * kGroup < count) words[i] = read_staged<int4>(from + group * sizeof(int4));
    }
#pragma unroll
    for (int i = 0; i < kGroupsAtOnce; ++i) {
      const std::int64_t group = at + i * kScatterThreads;
      if (group < end) groups[group] = cut_group(words[i], group, count);
    }
  }
}

/// Writes where the extras of each row begin. Rows behind the batch have none.
__device__ __forceinline__ void scatter_offsets(const ScatterStatesParams& p,
                                                const std::byte* staged, int num_rows,
                                                int num_extras) {
  const auto* offsets = reinterpret_cast<const int*>(staged + p.shape.extra_offsets_offset());
  for (int row = static_cast<int>(threadIdx.x); row <= p.shape.max_rows; row += kScatterThreads) {
    const bool is_staged = row < num_rows && num_extras > 0;
    p.extra_offsets[row] = is_staged ? __ldcv(offsets + row) : num_extras;
  }
}

/// Takes the expected step from the ring of a group of states, or counts a miss.
__device__ __forceinline__ void scatter_states(const ScatterStatesParams& p) {
  __shared__ int4 header_words[3];
  const int thread = static_cast<int>(threadIdx.x);
  const StateShape& shape = p.shape;
  const StepWord expected = p.expected_word != nullptr ? *p.expected_word : p.expected;
  const TakenStates before = *p.state;
  auto slot = static_cast<int>(expected % kMaxRingSlots);
  if (slot >= shape.steps_in_flight) slot = 0;
  const std::byte* staged = p.ring + slot * shape.slot_bytes();

  // One trip over the bus. What it brings is used only after the header shows that it belongs to
  // the step.
  int4 read{};
  int4 write{};
  if (std::int64_t{thread} * kGroup < shape.num_slots()) {
    read = read_staged<int4>(staged + StateShape::kReadOffset + thread * sizeof(int4));
    write = read_staged<int4>(staged + shape.write_offset() + thread * sizeof(int4));
  }
  const int part = kScatterThreads - 1 - thread;
  if (part < 3) header_words[part] = read_staged<int4>(staged + part * sizeof(int4));
  __syncthreads();

  StagedStates header;
  memcpy(&header, header_words, sizeof(header));
  const bool is_found = is_expected(expected, header.step, before.step);
  if (thread == 0) {
    std::uint64_t* const word = is_found ? &p.report->taken : &p.report->misses;
    const std::uint64_t value = is_found ? header.step.serial : before.step.misses + 1;
    *static_cast<volatile std::uint64_t*>(word) = value;
  }
  TakenStates now = before;
  now.step.num_rows = is_found ? min(max(header.step.num_rows, 0), shape.max_rows) : 0;
  now.step.num_copies =
      is_found
          ? static_cast<int>(min(std::int64_t{max(header.step.num_copies, 0)}, shape.num_slots()))
          : 0;
  now.num_extras =
      is_found ? min(max(header.num_extras, std::int64_t{0}), std::int64_t{shape.max_extras}) : 0;

  const std::int64_t slots = std::int64_t{now.step.num_rows} * shape.num_parts;
  const std::int64_t slots_before = std::int64_t{before.step.num_rows} * shape.num_parts;
  if (std::int64_t{thread} * kGroup < max(slots, slots_before)) {
    reinterpret_cast<int4*>(p.read)[thread] = cut_group(read, thread, slots);
    reinterpret_cast<int4*>(p.write)[thread] = cut_group(write, thread, slots);
  }
  scatter_list(staged + StateShape::kReadOffset, p.read, kScatterThreads, slots, slots_before);
  scatter_list(staged + shape.write_offset(), p.write, kScatterThreads, slots, slots_before);
  scatter_list(staged + shape.copies_offset(), p.copies, 0, 2 * std::int64_t{now.step.num_copies},
               2 * std::int64_t{before.step.num_copies});
  if (now.num_extras > 0 || before.num_extras > 0) {
    scatter_offsets(p, staged, now.step.num_rows, static_cast<int>(now.num_extras));
    scatter_list(staged + shape.extra_tokens_offset(), p.extra_tokens, 0, now.num_extras,
                 before.num_extras);
    scatter_list(staged + shape.extra_slots_offset(), p.extra_slots, 0,
                 now.num_extras * shape.num_parts, before.num_extras * shape.num_parts);
  }
  __syncthreads();  // all threads have read the state
  if (thread != 0) return;
  if (is_found) {
    now.step.serial = header.step.serial;
  } else {
    ++now.step.misses;
  }
  *p.state = now;
}

}  // namespace kvarena::kernels
