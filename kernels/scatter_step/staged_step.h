#pragma once

/// @file
/// A staged step: what the host writes into a slot of the staging ring and the device reads, and
/// the arithmetic that both do on it. A slot is a header, then `max_rows` rows, `max_rows` copies
/// on write and `max_changes` changed table entries, those of the rows one after another. Plain
/// memory, no CUDA.
///
/// A launch names the step that it is for by a step word, and takes no other. Steps are a chain
/// besides: each names the serial number of the one before, and the device takes a step only when
/// it follows the last one it took. So a step that was lost, overwritten or never staged makes
/// every later one a miss rather than a wrong table.

#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/views.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvarena::kernels {

/// Begins a slot. All zero: nothing was ever staged here.
struct StagedHeader {
  std::uint64_t serial = 0;     ///< of this step, rising; written last
  std::uint64_t follows = 0;    ///< serial of the step before; 0: the first
  std::int32_t num_rows = 0;    ///< of the batch
  std::int32_t num_copies = 0;  ///< copies on write
  std::int64_t unused = 0;
};

/// One sequence of the batch.
struct StagedRow {
  std::int32_t granule = -1;     ///< of the block tables at which its table begins; -1: skip
  std::int32_t seq_len = 0;      ///< tokens, new ones included
  std::int32_t num_new = 0;      ///< the last of them
  std::int32_t num_changed = 0;  ///< blocks, the last of those that hold its tokens
};

/// The sizes of a ring and of what it is scattered to.
struct StepShape {
  std::int32_t steps_in_flight = 0;   ///< slots of the ring
  std::int32_t max_rows = 0;          ///< sequences of a step
  std::int32_t max_tokens = 0;        ///< new tokens of a step
  std::int32_t max_changes = 0;       ///< changed table entries of a step
  std::int32_t max_sequences = 0;     ///< sequences that have a block table
  std::int32_t max_blocks_a_row = 0;  ///< entries of the longest
  std::int32_t block_size = 0;        ///< tokens a block
  std::int64_t table_entries = 0;     ///< of all block tables, whole granules

  static constexpr std::int64_t kRowsOffset = 64;
  /// A block table begins at a multiple of so many entries: a cache line.
  static constexpr std::int64_t kGranule = 32;
  /// Bytes from a slot's begin to its copies, to its changed entries, to its end.
  KVARENA_HOST_DEVICE constexpr std::int64_t copies_offset() const noexcept {
    return kRowsOffset + std::int64_t{max_rows} * static_cast<std::int64_t>(sizeof(StagedRow));
  }
  KVARENA_HOST_DEVICE constexpr std::int64_t changes_offset() const noexcept {
    return (copies_offset() + std::int64_t{max_rows} * 8 + 15) / 16 * 16;
  }
  KVARENA_HOST_DEVICE constexpr std::int64_t slot_bytes() const noexcept {
    return (changes_offset() + std::int64_t{max_changes} * 4 + 127) / 128 * 128;
  }
};

/// A step's name in 64 bits, written and read whole: its serial number above its ring slot. 0 names
/// no step.
using StepWord = std::uint64_t;
inline constexpr std::int32_t kMaxRingSlots = 256;

KVARENA_HOST_DEVICE constexpr StepWord step_word(std::uint64_t serial, std::int32_t slot) noexcept {
  return serial * kMaxRingSlots + static_cast<std::uint64_t>(slot);
}
KVARENA_HOST_DEVICE constexpr std::uint64_t serial_of(StepWord word) noexcept {
  return word / kMaxRingSlots;
}
/// Within the ring, whatever the word.
KVARENA_HOST_DEVICE constexpr std::int32_t slot_of(const StepShape& shape, StepWord word) noexcept {
  const auto slot = static_cast<std::int32_t>(word % kMaxRingSlots);
  return slot < shape.steps_in_flight ? slot : 0;
}

/// What the device remembers from step to step. All zero at first.
struct ScatterState {
  std::uint64_t serial = 0;   ///< of the last step it took
  std::uint64_t misses = 0;   ///< launches that took none
  std::int32_t num_rows = 0;  ///< how far the last launch wrote each array
  std::int32_t num_tokens = 0;
  std::int32_t num_copies = 0;
  std::int32_t unused = 0;
};

/// What the device tells the host, each number whole. All zero at first.
struct ScatterReport {
  std::uint64_t taken = 0;   ///< ScatterState::serial
  std::uint64_t misses = 0;  ///< ScatterState::misses
};

/// Whether a slot holds the step that a launch is for, and that step follows the last one taken.
KVARENA_HOST_DEVICE constexpr bool is_expected(StepWord expected, const StagedHeader& header,
                                               const ScatterState& state) noexcept {
  return header.serial == serial_of(expected) && header.follows == state.serial &&
         header.serial > state.serial;
}

/// A row as it is scattered; a skipped row has no tokens and no blocks.
struct RowPlan {
  std::int32_t granule = -1;     ///< as StagedRow
  std::int32_t seq_len = 0;      ///< as StagedRow
  std::int32_t num_new = 0;      ///< as StagedRow
  std::int32_t num_changed = 0;  ///< as StagedRow
  std::int32_t num_blocks = 0;   ///< that hold seq_len tokens
};

/// Checks a row, so that whatever it says nothing is written outside its place.
KVARENA_HOST_DEVICE constexpr RowPlan plan_row(const StepShape& shape,
                                               const StagedRow& row) noexcept {
  const auto tokens = static_cast<std::uint32_t>(row.seq_len);
  const auto size = static_cast<std::uint32_t>(shape.block_size);
  const auto blocks = static_cast<std::int32_t>((tokens + size - 1) / size);
  const bool is_whole = row.granule >= 0 && row.seq_len >= 0 && row.num_new >= 0 &&
                        row.num_new <= row.seq_len && row.num_changed >= 0 &&
                        row.num_changed <= blocks && blocks <= shape.max_blocks_a_row &&
                        row.granule * StepShape::kGranule + blocks <= shape.table_entries;
  if (!is_whole) return {};
  return {row.granule, row.seq_len, row.num_new, row.num_changed, blocks};
}

/// Slot of the token at `position` of a sequence: block * block_size + offset.
KVARENA_HOST_DEVICE constexpr std::int64_t slot_of_token(const StepShape& shape,
                                                         const BlockId* table,
                                                         std::int32_t position) noexcept {
  const std::int32_t block = position / shape.block_size;
  return std::int64_t{table[block].value} * shape.block_size + position % shape.block_size;
}

static_assert(sizeof(StagedHeader) == 32 && sizeof(StagedHeader) <= StepShape::kRowsOffset);
static_assert(sizeof(StagedRow) == 16 && StepShape::kRowsOffset % 16 == 0);
static_assert(sizeof(BlockCopy) == 8 && sizeof(BlockId) == 4);
static_assert(std::is_trivially_copyable_v<StepShape> &&
              std::is_trivially_copyable_v<ScatterState> && sizeof(ScatterState) == 32);
static_assert(serial_of(step_word(7, 255)) == 7 && serial_of(0) == 0);

}  // namespace kvarena::kernels
