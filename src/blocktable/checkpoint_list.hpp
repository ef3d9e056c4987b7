#pragma once

/// @file
/// `CheckpointList`: where the checkpoints of sequences lie. A checkpoint is a length and the
/// handles of the blocks that have the states at that length. Nobody holds the blocks, so the
/// caller asks whether the handles are still good. A fixed number of records; when all are used,
/// the oldest goes. All calls are O(1), unless they say otherwise.

#include "base/lazy_array.hpp"
#include "kvarena/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarena {

/// The checkpoints of all sequences, by their slots.
class CheckpointList {
 public:
  static constexpr std::int32_t kNone = -1;

  /// Makes room for `num_records` >= 1 checkpoints of `num_blocks` blocks each.
  CheckpointList(std::int64_t num_records, std::int64_t num_sequences, std::int64_t num_blocks);
  /// Returns the bytes of such a list.
  static std::int64_t bytes(std::int64_t num_records, std::int64_t num_sequences,
                            std::int64_t num_blocks) noexcept;

  /// Forgets the sequence that was in the slot before. Call it for each new sequence.
  void begin(std::size_t slot) noexcept { first_[slot] = kNone; }
  /// Returns the record of a length; a new one when there is none. O(checkpoints of the slot).
  std::int32_t add(std::size_t slot, std::int32_t length) noexcept;
  /// Returns the record of a length, or kNone. O(checkpoints of the slot).
  std::int32_t find(std::size_t slot, std::int32_t length) const noexcept;
  /// Forgets the checkpoints of a slot that are longer than `length`. O(checkpoints of the slot).
  void drop_after(std::size_t slot, std::int32_t length) noexcept;
  /// The first checkpoint of a slot, the one that was added last, or kNone.
  std::int32_t first(std::size_t slot) const noexcept { return first_[slot]; }
  /// The next checkpoint of the same slot, or kNone.
  std::int32_t next(std::int32_t record) const noexcept { return records_[index(record)].next; }
  std::int32_t length(std::int32_t record) const noexcept { return records_[index(record)].length; }
  /// The handles of a checkpoint, [num_blocks].
  std::span<BlockId> ids(std::int32_t record) noexcept {
    return {ids_.data() + index(record) * num_blocks_, num_blocks_};
  }
  std::span<const BlockId> ids(std::int32_t record) const noexcept {
    return {ids_.data() + index(record) * num_blocks_, num_blocks_};
  }
  std::span<Generation> generations(std::int32_t record) noexcept {
    return {generations_.data() + index(record) * num_blocks_, num_blocks_};
  }
  std::span<const Generation> generations(std::int32_t record) const noexcept {
    return {generations_.data() + index(record) * num_blocks_, num_blocks_};
  }

 private:
  struct Record {
    std::size_t slot;
    std::int32_t length;
    std::int32_t next;      // of the slot
    std::int32_t previous;  // of the slot
    std::int32_t newer;     // of all
    std::int32_t older;     // of all; in a free record the next free one
  };
  static constexpr std::size_t index(std::int32_t record) noexcept {
    return static_cast<std::size_t>(record);
  }
  void remove(std::int32_t record) noexcept;

  LazyArray<Record> records_;
  LazyArray<BlockId> ids_;
  LazyArray<Generation> generations_;
  LazyArray<std::int32_t> first_;  // by slot
  std::size_t num_blocks_;
  std::int32_t num_records_;
  std::int32_t untouched_ = 0;  // records from here on were never used
  std::int32_t free_ = kNone;
  std::int32_t oldest_ = kNone;
  std::int32_t newest_ = kNone;
};

}  // namespace kvarena
