#pragma once

/// @file
/// `SequenceTable`: the records of existing sequences, found by id in O(1). An id is a slot and the
/// number of the sequence within its tables, so tables that are called alike issue the same ids.
/// The slot freed last is reused first.

#include "blocktable/page_tree.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/blocktable/sequences.hpp"

#include <cstdint>
#include <limits>
#include <vector>

namespace kvarena {

/// The most tokens of a sequence: lengths are 32 bits wide.
inline constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();
/// The tokens of a block in most caches. Loops over tokens have a faster way for it.
inline constexpr std::int64_t kUsualBlockSize = 16;

/// One sequence, or a pin, which uses its table, holder and id only. While `room` > 0, the next
/// token goes to slot `next_slot`. Without room it goes to the next block of the table, or needs a
/// new block.
struct Sequence {
  std::int64_t next_slot = 0;  ///< one past the slot of the last token
  /// The value of claims_of_others when the block of the last token had no other claims; 0: not
  /// checked. While the tables' value is the same, the block still has no other claims.
  std::uint64_t claims_seen = 0;
  std::int32_t room = 0;           ///< tokens that still fit into the block of the last token
  std::int32_t length = 0;         ///< tokens
  std::int32_t max_length = 0;     ///< tokens
  std::int32_t filled_blocks = 0;  ///< ceil(length / block_size); the table may hold more
  PageTree table;
  std::int32_t mirrored_blocks = 0;  ///< first blocks that a mirror has; <= filled_blocks
  ImportState import_state = ImportState::none;  ///< other than none: claims_seen is 0
  std::uint8_t num_behind = 0;  ///< with groups, if room > 0: tables that a mirror lacks blocks of
  HolderId holder;
  std::uint64_t call_stamp = 0;  ///< the last call that named it
  SequenceId id;                 ///< kNoSequence in a free slot
};

/// Fixed-size table of sequences.
class SequenceTable {
 public:
  static constexpr std::uint64_t kMaxSlots = 1 << 24;  ///< the low bits of an id; serials are above
                                                       ///< them

  explicit SequenceTable(std::int32_t capacity);

  std::int64_t size() const noexcept { return size_; }
  std::int64_t capacity() const noexcept { return static_cast<std::int64_t>(num_slots_); }
  bool is_full() const noexcept { return size_ == capacity(); }

  /// Returns the id of sequence number `serial`, >= 1, in the slot that insert() takes next.
  /// Requires !is_full().
  SequenceId new_id(std::uint64_t serial) const noexcept;
  /// Adds a fresh record for the id that new_id() returned last. Requires !is_full().
  Sequence& insert(SequenceId id) noexcept;
  void erase(SequenceId id) noexcept;
  /// Returns the sequence, or nullptr when the id does not exist.
  Sequence* find(SequenceId id) noexcept {
    const std::uint64_t slot = slot_of(id);
    if (slot >= num_slots_ || slots_[slot].id != id || id == kNoSequence) [[unlikely]] {
      return nullptr;
    }
    return &slots_[slot];
  }
  const Sequence* find(SequenceId id) const noexcept {
    return const_cast<SequenceTable*>(this)->find(id);
  }
  /// Returns the sequence. Requires that the id exists.
  Sequence& get(SequenceId id) noexcept { return slots_[slot_of(id)]; }
  /// Returns the slot of an id's record.
  static std::uint64_t slot_of(SequenceId id) noexcept { return id.value & (kMaxSlots - 1); }
  /// Returns the sequence in a slot, or nullptr when there is none.
  Sequence* at(std::int32_t slot) noexcept {
    const auto place = static_cast<std::size_t>(slot);  // a negative one is past the end
    return place < num_slots_ && slots_[place].id != kNoSequence ? &slots_[place] : nullptr;
  }
  /// Calls visit(SequenceId, const Sequence&) for each sequence, by slot.
  template <class Visit>
  void for_each(Visit visit) const {
    for (const Sequence& sequence : slots_) {
      if (sequence.id != kNoSequence) visit(sequence.id, sequence);
    }
  }

 private:
  std::size_t capacity_left() const noexcept {
    return num_slots_ - static_cast<std::size_t>(size_);
  }

  std::size_t num_slots_;  // asking slots_ for it would divide
  std::vector<Sequence> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::int64_t size_ = 0;
};

}  // namespace kvarena
