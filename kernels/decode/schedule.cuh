#pragma once

/// @file
/// The rows of a decode schedule, and the shared memory of the thread block that makes it. Included
/// by schedule_kernel.cuh.

#include "kernels/decode/decode.h"
#include "kernels/decode/decode_choice.h"

#include <cstdint>

namespace kvarena::kernels::decode_schedule {

inline constexpr int kThreads = 1024;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kBins = kMaxSteps + 1;
inline constexpr int kBinsPerThread = 2;
static_assert(kBins == kThreads * kBinsPerThread);
static_assert(kWarps == 32 && kMaxWaves <= kWarps && kSizeClasses < kWarps);

__device__ __forceinline__ int lane_of() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_of() { return static_cast<int>(threadIdx.x) / 32; }

/// A row of the batch. Its units [first_unit, first_unit + count) are those that some of its query
/// tokens see.
struct Row {
  int count;  // kSkippedRow: not taken
  int first_unit;
  int q_len;
  int first_q;
  int seq_len;
  int table_row;
};
inline constexpr Row kNoRow{kSkippedRow, 0, 0, 0, 0, 0};

/// The state of the choice of a part length.
struct Choice {
  // First histograms by steps, then running sums.
  alignas(8) int rows_up_to[kBins];
  alignas(8) unsigned steps_up_to[kBins];
  alignas(8) unsigned missing_up_to[kBins];
  int parts[kBins];               // of all rows, for each length
  unsigned warp_sums[3][kWarps];  // of rows, steps and missing units
};

/// The places of the parts of a tile of rows.
struct Places {
  Row row[kThreads];
  RowCut cut[kThreads];
  int place[kThreads];                       // in the schedule
  int first[kThreads + 1];                   // in the tile
  int warp_parts[kSizeClasses + 1][kWarps];  // of each class, and of all
  int warp_first[kSizeClasses + 1][kWarps];  // place of the first of them; in the tile
};

struct Shared {
  union {
    Choice choice;
    Places places;
  };
  // Read when others already use the memory above.
  alignas(16) Candidate candidates[kMaxWaves];
  int next[kSizeClasses];  // place of the next part of each class, with several tiles
  int total;               // parts of all rows
  int end;                 // place of the first row that does not fit
  std::int64_t sums[kWarps];
  int longest[kWarps];
  int rows[kWarps];
};

/// Numbers that the host computes, because divisions are slow on the device.
struct Limits {
  PartLength fixed;           // of fixed parts
  int most_parts[kMaxWaves];  // of so many waves
};

/// What all functions of the schedule need.
struct Context {
  const DecodeScheduleParams& p;
  const DecodeWorkspace& w;
  const CutShape& shape;
  const Limits& limits;
  Shared& shared;

  __device__ bool is_one_tile() const { return p.num_rows <= kThreads; }
};

/// Reads a row of the batch. A row past the last counts as skipped.
__device__ __forceinline__ Row load_row(const DecodeScheduleParams& p, int row) {
  if (row >= p.num_rows) return kNoRow;
  // All loads come first, so that they run at the same time.
  const int seq_len = max(0, p.seq_lens[row]);
  const int table_row = p.row_slots == nullptr ? row : p.row_slots[row];
  const int shared_tokens = p.shared_tokens == nullptr ? 0 : p.shared_tokens[row];
  const bool is_ragged = p.q_offsets != nullptr;
  const std::int64_t first_q = is_ragged ? p.q_offsets[row] : std::int64_t{row} * p.limits.q_len;
  const std::int64_t end_q = is_ragged ? p.q_offsets[row + 1] : first_q + p.limits.q_len;
  const std::int64_t q_len = end_q - first_q;
  if (table_row < 0 || shared_tokens > 0 || q_len < 1 || q_len > p.limits.q_len) return kNoRow;
  Row r{};
  r.q_len = static_cast<int>(q_len);
  r.first_q = static_cast<int>(first_q);
  r.seq_len = seq_len;
  r.table_row = table_row;
  const bool has_pairs = unit_tokens(p.limits.kv_dtype) == 2 * kTileTokens;
  const int first_seen = p.window_tokens == 0 ? 0 : max(0, seq_len - r.q_len + 1 - p.window_tokens);
  const auto units = [&](unsigned tokens) {
    return static_cast<int>(has_pairs ? tokens / (2 * kTileTokens) : tokens / kTileTokens);
  };
  const unsigned last = (has_pairs ? 2 : 1) * kTileTokens - 1;
  r.first_unit = units(static_cast<unsigned>(first_seen));
  r.count = max(0, units(static_cast<unsigned>(seq_len) + last) - r.first_unit);
  return r;
}

/// Calls use(row, base) for this thread's row of each tile, of which `base` is the first row. All
/// threads call it equally often. `own` is the row of the first tile.
template <class Use>
__device__ __forceinline__ void for_each_tile(const Context& c, const Row& own, Use&& use) {
  use(own, 0);
#pragma unroll 1
  for (int base = kThreads; base < c.p.num_rows; base += kThreads) {
    use(load_row(c.p, base + static_cast<int>(threadIdx.x)), base);
  }
}

/// The longest row, and the number of rows that have units.
struct Extent {
  int longest;
  int rows;
};
/// Finds the extent of all rows, for all threads.
__device__ __forceinline__ Extent extent_of(const Context& c, const Row& own) {
  int longest = 0;
  int rows = 0;
  for_each_tile(c, own, [&](const Row& row, int) {
    longest = max(longest, row.count);
    rows += row.count > 0 ? 1 : 0;
  });
  longest = __reduce_max_sync(~0U, longest);
  rows = __reduce_add_sync(~0U, rows);
  if (lane_of() == 0) {
    c.shared.longest[warp_of()] = longest;
    c.shared.rows[warp_of()] = rows;
  }
  __syncthreads();
  return {__reduce_max_sync(~0U, c.shared.longest[lane_of()]),
          __reduce_add_sync(~0U, c.shared.rows[lane_of()])};
}

/// How rows are cut, and the longest part.
struct Sizes {
  PartLength length;
  int longest_part;
};

/// The rank of a row among the rows of its warp. Its peers are those of the same size class.
struct Rank {
  RowCut cut;
  int size_class;
  int parts_before_peer;  // of peers before it
  int parts_before;       // of all rows before it
  int peers_parts;        // of all peers
  int warp_parts;         // of all rows
  bool is_first;          // of its peers
};

/// Ranks the row of this thread. Sums over rows are sums over the bits of their parts, because
/// ballots are cheaper than shuffles: most rows have few parts.
__device__ __forceinline__ Rank rank_of(const Context& c, const Row& row, const Sizes& sizes) {
  Rank r{};
  if (__all_sync(~0U, row.count == kSkippedRow)) return r;
  r.cut = cut_row(sizes.length, c.shape.warps, row.count);
  r.size_class = size_class_of(row.count, r.cut, sizes.longest_part);
  const unsigned before = (1U << lane_of()) - 1;
  unsigned peers = ~0U;
  static_assert(kSizeClasses <= 1 << 4);
#pragma unroll
  for (int bit = 0; bit < 4; ++bit) {
    const bool is_set = (r.size_class >> bit & 1) != 0;
    const unsigned set = __ballot_sync(~0U, is_set);
    peers &= is_set ? set : ~set;
  }
  r.is_first = (peers & before) == 0;
#pragma unroll 1
  for (int bit = 0; __any_sync(~0U, (r.cut.parts >> bit) != 0); ++bit) {
    const unsigned has = __ballot_sync(~0U, (r.cut.parts >> bit & 1) != 0);
    r.parts_before_peer += __popc(has & peers & before) << bit;
    r.parts_before += __popc(has & before) << bit;
    r.peers_parts += __popc(has & peers) << bit;
    r.warp_parts += __popc(has) << bit;
  }
  return r;
}

/// Returns the row that has item `value`: the last one whose first item is at most `value`.
__device__ __forceinline__ int row_holding(const int* first, int value) {
  int row = 0;
#pragma unroll
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (first[row + step] <= value) row += step;
  }
  return row;
}

}  // namespace kvarena::kernels::decode_schedule
