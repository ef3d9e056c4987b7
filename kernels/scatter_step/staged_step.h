#pragma once

/// @file
/// A staged step: the data that the host writes into a slot of the staging ring and the device
/// reads, and the arithmetic on them that both share. A slot has a header, `max_rows` rows,
/// `max_rows` copies on write, and `max_changes` changed table entries, row after row. Plain
/// memory, no CUDA.
///
/// A step word names the step of a launch, and the launch takes no other step. In addition each
/// step names the serial number of the step before it, and the device takes a step only when it
/// follows the last step that it took. When a step is lost, overwritten or never staged, every
/// later step is a miss; a wrong table is never used.

#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/views.hpp"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace kvarena::kernels {

/// The begin of a slot. All zeros mean that nothing was ever staged here.
struct StagedHeader {
  std::uint64_t serial = 0;     ///< of this step; rises from step to step, and is written last
  std::uint64_t follows = 0;    ///< serial of the step before; 0: this is the first
  std::int32_t num_rows = 0;    ///< rows of the batch
  std::int32_t num_copies = 0;  ///< copies on write
  std::int64_t unused = 0;
};

/// One sequence of the batch.
struct StagedRow {
  std::int32_t granule = -1;  ///< granule of the block tables at which its table begins; -1: skip
  std::int32_t seq_len = 0;   ///< tokens, with the new ones
  std::int32_t num_new = 0;   ///< how many of the last tokens are new
  std::int32_t num_changed = 0;  ///< how many of its last blocks changed
};

/// The sizes of a staging ring and of the arrays that receive a step.
struct StepShape {
  std::int32_t steps_in_flight = 0;   ///< slots of the ring
  std::int32_t max_rows = 0;          ///< sequences of a step
  std::int32_t max_tokens = 0;        ///< new tokens of a step
  std::int32_t max_changes = 0;       ///< changed table entries of a step
  std::int32_t max_sequences = 0;     ///< sequences that have a block table
  std::int32_t max_blocks_a_row = 0;  ///< entries of the longest block table
  std::int32_t block_size = 0;        ///< tokens in a block
  std::int64_t table_entries = 0;     ///< of all block tables, in whole granules

  static constexpr std::int64_t kRowsOffset = 64;
  /// A block table begins at a multiple of this many entries: a cache line.
  static constexpr std::int64_t kGranule = 32;
  /// Bytes from the begin of a slot to its copies.
  KVARENA_HOST_DEVICE constexpr std::int64_t copies_offset() const noexcept {
    return kRowsOffset + std::int64_t{max_rows} * static_cast<std::int64_t>(sizeof(StagedRow));
  }
  /// Bytes from the begin of a slot to its changed entries.
  KVARENA_HOST_DEVICE constexpr std::int64_t changes_offset() const noexcept {
    return (copies_offset() + std::int64_t{max_rows} * 8 + 15) / 16 * 16;
  }
  /// Bytes of a slot.
  KVARENA_HOST_DEVICE constexpr std::int64_t slot_bytes() const noexcept {
    return (changes_offset() + std::int64_t{max_changes} * 4 + 127) / 128 * 128;
  }
};

/// The name of a step in 64 bits, which are written and read at once: the serial number, and below
/// it the ring slot. 0 names no step.
using StepWord = std::uint64_t;
inline constexpr std::int32_t kMaxRingSlots = 256;

/// Makes the word of a step.
KVARENA_HOST_DEVICE constexpr StepWord step_word(std::uint64_t serial, std::int32_t slot) noexcept {
  return serial * kMaxRingSlots + static_cast<std::uint64_t>(slot);
}
/// Returns the serial number in a word.
KVARENA_HOST_DEVICE constexpr std::uint64_t serial_of(StepWord word) noexcept {
  return word / kMaxRingSlots;
}
/// Returns the ring slot in a word. The result lies within the ring for any word.
KVARENA_HOST_DEVICE constexpr std::int32_t slot_of(const StepShape& shape, StepWord word) noexcept {
  const auto slot = static_cast<std::int32_t>(word % kMaxRingSlots);
  return slot < shape.steps_in_flight ? slot : 0;
}

/// The device's memory from step to step. It begins as all zeros.
struct ScatterState {
  std::uint64_t serial = 0;   ///< of the last step that the device took
  std::uint64_t misses = 0;   ///< launches that took no step
  std::int32_t num_rows = 0;  ///< how far the last launch wrote the arrays of rows
  std::int32_t num_tokens = 0;
  std::int32_t num_copies = 0;
  std::int32_t unused = 0;
};

/// The device's report to the host. Each number is written at once. It begins as all zeros.
struct ScatterReport {
  std::uint64_t taken = 0;   ///< ScatterState::serial
  std::uint64_t misses = 0;  ///< ScatterState::misses
};

/// Returns whether a slot holds the step that a launch is for, and that step follows the last one
/// taken.
KVARENA_HOST_DEVICE constexpr bool is_expected(StepWord expected, const StagedHeader& header,
                                               const ScatterState& state) noexcept {
  return header.serial == serial_of(expected) && header.follows == state.serial &&
         header.serial > state.serial;
}

/// A row as the device scatters it. A skipped row has no tokens and no blocks.
struct RowPlan {
  std::int32_t granule = -1;     ///< as in StagedRow
  std::int32_t seq_len = 0;      ///< as in StagedRow
  std::int32_t num_new = 0;      ///< as in StagedRow
  std::int32_t num_changed = 0;  ///< as in StagedRow
  std::int32_t num_blocks = 0;   ///< blocks that hold seq_len tokens
};

/// Checks a staged row whose tokens are in `blocks` blocks. A row that would make the kernel write
/// outside its table becomes a skipped row.
KVARENA_HOST_DEVICE constexpr RowPlan plan_row(const StepShape& shape, const StagedRow& row,
                                               std::int32_t blocks) noexcept {
  const bool is_whole = row.granule >= 0 && row.seq_len >= 0 && row.num_new >= 0 &&
                        row.num_new <= row.seq_len && row.num_changed >= 0 &&
                        row.num_changed <= blocks && blocks <= shape.max_blocks_a_row &&
                        row.granule * StepShape::kGranule + blocks <= shape.table_entries;
  if (!is_whole) return {};
  return {row.granule, row.seq_len, row.num_new, row.num_changed, blocks};
}
/// The same, which finds the blocks by a division.
KVARENA_HOST_DEVICE constexpr RowPlan plan_row(const StepShape& shape,
                                               const StagedRow& row) noexcept {
  const auto tokens = static_cast<std::uint32_t>(row.seq_len);
  const auto size = static_cast<std::uint32_t>(shape.block_size);
  return plan_row(shape, row, static_cast<std::int32_t>((tokens + size - 1) / size));
}

/// Returns the slot of the token at `position` of a sequence: block * block_size + offset.
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
