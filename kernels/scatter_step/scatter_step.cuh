#pragma once

/// @file
/// The kernel of scatter_step.h. It runs one thread block: the time is that of one trip over the
/// bus and of what depends on it, which more thread blocks would not shorten. A thread first
/// handles a row, then a changed table entry, then a new token. Rows are taken in tiles of
/// blockDim.x rows, with running sums of their tokens and changes. A decode step is one tile.
///
/// The kernel requests the data of a decode step when it knows only the step's slot. The header, a
/// tile of rows and the first changed entries come in one trip over the bus. In a decode step each
/// row has one new token and few changes, so each thread writes those of its own row.

#include "kernels/params.h"
#include "kernels/scatter_step/scatter_step.h"

#include <cstdint>

namespace kvarena::kernels {

inline constexpr int kScatterThreads = 1024;
/// Changed entries are read in groups of four.
inline constexpr int kGroup = 4;
/// Groups that are requested together with the header.
inline constexpr int kEarlyGroups = 256;
/// Changed entries of a row that its own thread writes.
inline constexpr int kFewChanges = 4;
/// Changed entries that pass through shared memory at a time.
inline constexpr int kChunk = kScatterThreads * kGroup;

/// Reads 16 bytes of staging memory, which the host writes.
template <class T>
__device__ __forceinline__ T read_staged(const std::byte* from) {
  static_assert(sizeof(T) == sizeof(int4));
  const int4 words = __ldcv(reinterpret_cast<const int4*>(from));
  T value;
  memcpy(&value, &words, sizeof(T));
  return value;
}

/// Numbers of new tokens and of changed entries.
struct Sums {
  std::int64_t tokens;
  std::int64_t changes;
};
/// The sums over the rows of each warp, then over the warps before it; the last ones are totals.
struct WarpSums {
  std::int64_t tokens[kScatterThreads / 32 + 1];
  std::int64_t changes[kScatterThreads / 32 + 1];
  unsigned plain[kScatterThreads / 32];  // tokens and, from bit 16 on, changes of plain rows
};

/// Returns the lanes before this one.
__device__ __forceinline__ unsigned lower_lanes() { return (1U << threadIdx.x % 32) - 1; }

/// Adds up a number over the lanes before this one, and over all of them, bit by bit.
__device__ __forceinline__ std::int64_t sum_before(int number, std::int64_t& all) {
  std::int64_t before = 0;
  all = 0;
  for (int bit = 0; __any_sync(~0U, number >> bit != 0); ++bit) {
    const unsigned has = __ballot_sync(~0U, (number >> bit & 1) != 0);
    before += std::int64_t{__popc(has & lower_lanes())} << bit;
    all += std::int64_t{__popc(has)} << bit;
  }
  return before;
}

/// Turns the sums of warps into sums over the warps before each. A warp calls it.
__device__ __forceinline__ void sum_warps(std::int64_t* sums) {
  static_assert(kScatterThreads / 32 == 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t own = sums[lane];
  std::int64_t sum = own;
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const std::int64_t other = __shfl_up_sync(~0U, sum, offset);
    if (lane >= offset) sum += other;
  }
  sums[lane] = sum - own;
  if (lane == 31) sums[32] = sum;
}

/// Returns whether a row is one of a decode step: it has at most one new token, and few changes.
__device__ __forceinline__ bool is_plain_row(const RowPlan& plan) {
  return plan.num_new <= 1 && plan.num_changed <= kFewChanges;
}

/// Adds up tokens and, from bit 16 on, changes of a warp's plain rows: of the lanes before this
/// one, and of `all`. Most rows have no change or one.
__device__ __forceinline__ unsigned plain_before(const RowPlan& plan, unsigned& all) {
  static_assert(kFewChanges < 8 && kScatterThreads * kFewChanges < 1 << 16);
  const unsigned tokens = __ballot_sync(~0U, plan.num_new != 0);
  const unsigned ones = __ballot_sync(~0U, (plan.num_changed & 1) != 0);
  unsigned before = __popc(tokens & lower_lanes()) | __popc(ones & lower_lanes()) << 16;
  all = __popc(tokens) | __popc(ones) << 16;
  if (__any_sync(~0U, plan.num_changed > 1)) {
    const unsigned twos = __ballot_sync(~0U, (plan.num_changed & 2) != 0);
    const unsigned fours = __ballot_sync(~0U, (plan.num_changed & 4) != 0);
    before += __popc(twos & lower_lanes()) << 17;
    before += __popc(fours & lower_lanes()) << 18;
    all += (__popc(twos) << 17) + (__popc(fours) << 18);
  }
  return before;
}

/// What a tile of rows has. Tokens and changes are limited to the room in the arrays: rows are
/// checked one by one, but their sum is not.
struct TileSums {
  int first_token;   ///< tokens of the rows before this thread's
  int first_change;  ///< changes of the rows before this thread's
  int tokens;        ///< of all rows
  int changes;       ///< of all rows
  bool is_plain;     ///< all rows are plain, and there is room for all changes
};

/// Adds up the new tokens and changes of a tile's rows. Every thread of the block calls it.
__device__ __forceinline__ TileSums sum_tile(WarpSums& sums, const RowPlan& plan, int token_room,
                                             int change_room) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool is_plain_warp = __all_sync(~0U, is_plain_row(plan));
  unsigned plain_all = 0;
  unsigned plain = 0;
  if (is_plain_warp) plain = plain_before(plan, plain_all);
  if (lane == 0) sums.plain[warp] = plain_all;
  if (__syncthreads_and(is_plain_warp ? 1 : 0) != 0) {
    const unsigned its = sums.plain[lane];
    plain += __reduce_add_sync(~0U, lane < warp ? its : 0U);
    const unsigned all = __reduce_add_sync(~0U, its);
    const int changes = static_cast<int>(all >> 16);
    return {min(static_cast<int>(plain & 0xFFFFU), token_room),
            min(static_cast<int>(plain >> 16), change_room),
            min(static_cast<int>(all & 0xFFFFU), token_room), min(changes, change_room),
            changes <= change_room};
  }
  Sums own;
  Sums first = {sum_before(plan.num_new, own.tokens), sum_before(plan.num_changed, own.changes)};
  if (lane == 0) {
    sums.tokens[warp] = own.tokens;
    sums.changes[warp] = own.changes;
  }
  __syncthreads();
  if (warp < 2) sum_warps(warp == 0 ? sums.tokens : sums.changes);
  __syncthreads();
  const auto clamped = [](std::int64_t sum, int room) {
    return static_cast<int>(min(sum, std::int64_t{room}));
  };
  return {clamped(first.tokens + sums.tokens[warp], token_room),
          clamped(first.changes + sums.changes[warp], change_room),
          clamped(sums.tokens[kScatterThreads / 32], token_room),
          clamped(sums.changes[kScatterThreads / 32], change_room), false};
}

/// A tile of rows with running sums over it. The sums behind the tile's last row are its totals.
struct RowTile {
  int first_token[kScatterThreads + 1];   // of the tile's new tokens
  int first_change[kScatterThreads + 1];  // of the tile's changed entries
  int granule[kScatterThreads];           // at which the row's table begins
  int first_position[kScatterThreads];    // of the row's new tokens in its sequence
  int first_block[kScatterThreads];       // of the row's changed entries in its table
};

/// Returns the row that holds item `value`: the last row whose sum is at most `value`.
__device__ __forceinline__ int row_holding(const int* sums, int value) {
  int row = 0;
#pragma unroll
  for (int step = kScatterThreads / 2; step > 0; step /= 2) {
    if (sums[row + step] <= value) row += step;
  }
  return row;
}

/// Writes a tile's changed entries, numbers [begin, end) of the step, to the block tables. Every
/// thread of the block calls it.
__device__ __forceinline__ void scatter_changes(const ScatterStepParams& p, const RowTile& tile,
                                                const std::byte* staged, const int4* early,
                                                int4* chunk, int begin, int end) {
  const std::byte* changes = staged + p.shape.changes_offset();
  const int* entries = reinterpret_cast<const int*>(chunk);
  for (int first = begin / kChunk * kChunk; first < end; first += kChunk) {
    const int group = first / kGroup + static_cast<int>(threadIdx.x);
    if (group * kGroup < end) {
      chunk[threadIdx.x] = group < kEarlyGroups
                               ? early[group]
                               : read_staged<int4>(changes + std::int64_t{group} * sizeof(int4));
    }
    __syncthreads();
    const int last = min(end, first + kChunk);
    for (int i = max(begin, first) + static_cast<int>(threadIdx.x); i < last;
         i += kScatterThreads) {
      const int row = row_holding(tile.first_change, i - begin);
      const int block = tile.first_block[row] + (i - begin - tile.first_change[row]);
      p.block_tables[tile.granule[row] * StepShape::kGranule + block] = BlockId(entries[i - first]);
    }
    __syncthreads();
  }
}

/// Writes the slots of a tile's new tokens. The first of them is number `begin` of the step.
template <bool kIsPart>
__device__ __forceinline__ void write_slots(const ScatterStepParams& p, const RowTile& tile,
                                            int begin) {
  if (kIsPart && p.slots == nullptr) return;
  const int count = tile.first_token[kScatterThreads];
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kScatterThreads) {
    // In a decode step, token i belongs to row i.
    const bool is_own =
        i < kScatterThreads && tile.first_token[i] == i && tile.first_token[i + 1] > i;
    const int row = is_own ? i : row_holding(tile.first_token, i);
    const BlockId* table = p.block_tables + tile.granule[row] * StepShape::kGranule;
    p.slots[begin + i] =
        slot_of_token(p.shape, table, tile.first_position[row] + (i - tile.first_token[row]));
  }
}

/// Returns the blocks that hold a row's tokens. Most block sizes are powers of two.
__device__ __forceinline__ int blocks_of(const StepShape& shape, int seq_len) {
  const auto size = static_cast<unsigned>(shape.block_size);
  const unsigned rounded = static_cast<unsigned>(seq_len) + size - 1;
  if ((size & (size - 1)) != 0) return static_cast<int>(rounded / size);
  return static_cast<int>(rounded >> (31 - __clz(static_cast<int>(size))));
}

/// Returns the checked row. In a part without slots the new tokens see the row's tokens and are not
/// among them.
template <bool kIsPart>
__device__ __forceinline__ RowPlan plan_of(const ScatterStepParams& p, const StagedRow& row) {
  const int blocks = blocks_of(p.shape, row.seq_len);
  if (!kIsPart || p.slots != nullptr) return plan_row(p.shape, row, blocks);
  StagedRow seen = row;
  seen.num_new = 0;
  RowPlan plan = plan_row(p.shape, seen, blocks);
  plan.num_new = max(row.num_new, 0);
  return plan;
}

/// What the last launch wrote for a row.
struct LastRow {
  std::int32_t granule = -1;    ///< as in StagedRow
  std::int32_t seq_len = 0;     ///< as in StagedRow
  std::int64_t token = 0;       ///< number of its first new token in the step
  std::int64_t next_token = 0;  ///< number of the next row's
  std::int64_t slot = -1;       ///< of the new token with the row's number
};

/// Reads what the last launch wrote for the row with the number `index`. Numbers of tokens are
/// limited to max_tokens, so those of a row whose second token found no room say nothing.
template <bool kIsPart>
__device__ __forceinline__ LastRow last_row(const ScatterStepParams& p, int index) {
  const bool has_slots = !kIsPart || p.slots != nullptr;
  if (!has_slots || index >= min(p.shape.max_rows, p.shape.max_tokens - 1)) return {};
  return {p.row_slots[index], p.seq_lens[index], p.q_offsets[index], p.q_offsets[index + 1],
          p.slots[index]};
}

/// Returns the place of a row's last token in its block.
__device__ __forceinline__ int last_offset(const ScatterStepParams& p, const RowPlan& plan) {
  return plan.seq_len - 1 - (plan.num_blocks - 1) * p.shape.block_size;
}

/// Returns the slot of the last token of a row, if the step does not change its table entry. Where
/// the last step was a decode step of the same sequence, it is the slot behind that step's: only
/// this kernel changes tables.
template <bool kIsPart>
__device__ __forceinline__ std::int64_t last_slot(const ScatterStepParams& p, const RowPlan& plan,
                                                  const LastRow& last, int index) {
  if (plan.num_new != 1 || plan.num_changed > 0) return -1;
  if (kIsPart && p.slots == nullptr) return -1;
  const int offset = last_offset(p, plan);
  if (offset > 0 && last.granule == plan.granule && last.seq_len == plan.seq_len - 1 &&
      last.token == index && last.next_token == index + 1) {
    return last.slot + 1;
  }
  const BlockId* table = p.block_tables + plan.granule * StepShape::kGranule;
  return std::int64_t{table[plan.num_blocks - 1].value} * p.shape.block_size + offset;
}

/// Writes the changed entries of a row of a decode step, and the slot of its new token. `token` and
/// `change` count those of the step before it, `slot` is what last_slot returned.
template <bool kIsPart>
__device__ __forceinline__ void write_plain_row(const ScatterStepParams& p, const RowPlan& plan,
                                                const int4* early, int token, int change,
                                                std::int64_t slot) {
  if (plan.num_changed > 0) {
    const int* entries = reinterpret_cast<const int*>(early) + change;
    BlockId* table =
        p.block_tables + plan.granule * StepShape::kGranule + plan.num_blocks - plan.num_changed;
    for (int i = 0; i < plan.num_changed; ++i) table[i] = BlockId(entries[i]);
    slot = std::int64_t{entries[plan.num_changed - 1]} * p.shape.block_size + last_offset(p, plan);
  }
  if (plan.num_new == 0 || token >= p.shape.max_tokens) return;
  if (kIsPart && p.slots == nullptr) return;
  p.slots[token] = slot;
}

/// Writes one row of the arrays.
__device__ __forceinline__ void write_row(const ScatterStepParams& p, int index, const RowPlan& row,
                                          std::int64_t first_token) {
  p.row_slots[index] = row.granule;
  p.row_offsets[index] = row.granule < 0 ? 0 : row.granule * StepShape::kGranule;
  p.seq_lens[index] = row.seq_len;
  p.num_blocks[index] = row.num_blocks;
  p.q_offsets[index] = first_token;
}

/// Resets everything behind the step to its empty value, as far as the last launch wrote.
template <bool kIsPart>
__device__ __forceinline__ void clear_past(const ScatterStepParams& p, const ScatterState& before,
                                           const ScatterState& now) {
  if (now.num_rows == before.num_rows && now.num_tokens == before.num_tokens &&
      now.num_copies == before.num_copies) {
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = now.num_rows + thread; i < before.num_rows; i += kScatterThreads) {
    write_row(p, i, RowPlan{}, now.num_tokens);
  }
  // Rows behind the batch have no tokens. They all begin where the batch ends.
  if (now.num_rows < before.num_rows || now.num_tokens != before.num_tokens) {
    for (int i = now.num_rows + thread; i <= p.shape.max_rows; i += kScatterThreads) {
      p.q_offsets[i] = now.num_tokens;
    }
  }
  const bool has_slots = !kIsPart || p.slots != nullptr;
  for (int i = now.num_tokens + thread; has_slots && i < before.num_tokens; i += kScatterThreads) {
    p.slots[i] = -1;
  }
  for (int i = now.num_copies + thread; i < before.num_copies; i += kScatterThreads) {
    p.copies[i] = {BlockId(-1), BlockId(-1)};
  }
}

/// Reports the result to the host. It does so early, so that the write over the bus ends while the
/// arrays are written.
__device__ __forceinline__ void publish(const ScatterStepParams& p, const ScatterState& before,
                                        bool is_found, std::uint64_t serial) {
  std::uint64_t* const word = is_found ? &p.report->taken : &p.report->misses;
  *static_cast<volatile std::uint64_t*>(word) = is_found ? serial : before.misses + 1;
}

/// Takes the expected step from the ring and scatters it, or counts a miss.
template <bool kIsPart>
__device__ __forceinline__ void scatter(const ScatterStepParams& p) {
  __shared__ WarpSums sums;
  __shared__ int4 header_words[2];
  __shared__ RowTile tile;
  __shared__ int4 early[kEarlyGroups];
  __shared__ int4 chunk[kScatterThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const StepShape& shape = p.shape;
  LastRow last = last_row<kIsPart>(p, thread);
  const StepWord expected = p.expected_word != nullptr ? *p.expected_word : p.expected;
  const ScatterState before = *p.state;
  const std::byte* staged = p.ring + slot_of(shape, expected) * shape.slot_bytes();
  const std::byte* rows = staged + StepShape::kRowsOffset;

  // One trip over the bus. The rows and entries are used only after the header shows that they
  // belong to the step.
  StagedRow row;
  int4 group{};
  int4 words{};
  const bool has_group = thread < kEarlyGroups && thread * kGroup < shape.max_changes;
  const int half = kScatterThreads - 1 - thread;  // the last two threads read half a header each
  if (thread < shape.max_rows) row = read_staged<StagedRow>(rows + thread * sizeof(StagedRow));
  if (has_group) {
    group = read_staged<int4>(staged + shape.changes_offset() + thread * sizeof(int4));
  }
  if (half < 2) words = read_staged<int4>(staged + half * sizeof(int4));
  __syncwarp();  // no load waits for the stores below: their numbers come over the bus
  if (has_group) early[thread] = group;
  if (half < 2) header_words[half] = words;
  __syncthreads();

  StagedHeader header;
  memcpy(&header, header_words, sizeof(header));
  const bool is_found = is_expected(expected, header, before);
  if (thread == 0) publish(p, before, is_found, header.serial);
  ScatterState now = before;
  now.num_rows = is_found ? min(max(header.num_rows, 0), shape.max_rows) : 0;
  now.num_copies = is_found ? min(max(header.num_copies, 0), shape.max_rows) : 0;
  now.num_tokens = 0;
  // Copies on write are a second trip, which ends while the rows are scattered.
  const auto* copies = reinterpret_cast<const int2*>(staged + shape.copies_offset());
  int2 copy = {};
  if (thread < now.num_copies) copy = __ldcv(copies + thread);
  int num_changes = 0;
  for (int base = 0; base < now.num_rows; base += kScatterThreads) {
    const int index = base + thread;
    if (base > 0 && index < now.num_rows) {
      row = read_staged<StagedRow>(rows + std::int64_t{index} * sizeof(StagedRow));
    }
    const RowPlan plan = index < now.num_rows ? plan_of<kIsPart>(p, row) : RowPlan{};
    const std::int64_t slot = last_slot<kIsPart>(p, plan, last, index);
    last = {};
    const TileSums its =
        sum_tile(sums, plan, shape.max_tokens - now.num_tokens, shape.max_changes - num_changes);
    const int token = now.num_tokens + its.first_token;
    if (index < now.num_rows) write_row(p, index, plan, token);
    const int end = num_changes + its.changes;
    if (its.is_plain && end <= kEarlyGroups * kGroup) {
      write_plain_row<kIsPart>(p, plan, early, token, num_changes + its.first_change, slot);
    } else {
      tile.first_token[thread] = its.first_token;
      tile.first_change[thread] = its.first_change;
      tile.granule[thread] = plan.granule;
      tile.first_position[thread] = plan.seq_len - plan.num_new;
      tile.first_block[thread] = plan.num_blocks - plan.num_changed;
      if (thread == 0) {
        tile.first_token[kScatterThreads] = its.tokens;
        tile.first_change[kScatterThreads] = its.changes;
      }
      __syncthreads();
      scatter_changes(p, tile, staged, early, chunk, num_changes, end);
      write_slots<kIsPart>(p, tile, now.num_tokens);
    }
    now.num_tokens += its.tokens;
    num_changes = end;
    if (base + kScatterThreads < now.num_rows) __syncthreads();  // the next tile uses the memory
  }

  for (int i = thread; i < now.num_copies; i += kScatterThreads) {
    if (i != thread) copy = __ldcv(copies + i);
    p.copies[i] = {BlockId(copy.x), BlockId(copy.y)};
  }
  clear_past<kIsPart>(p, before, now);
  if (thread != 0) return;
  if (is_found) {
    now.serial = header.serial;
  } else {
    ++now.misses;
  }
  *p.state = now;
}

/// A step of a cache whose layers are alike.
__global__ void __launch_bounds__(kScatterThreads)
    scatter_step(const __grid_constant__ ScatterStepParams p) {
  scatter<false>(p);
}

}  // namespace kvarena::kernels
