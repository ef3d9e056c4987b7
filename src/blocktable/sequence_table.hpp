#pragma once

/// @file
/// `SequenceTable`: the records of existing sequences, found by id in O(1): an id is a slot and the
/// number of times the slot has been used, so it never comes back. Slots are reused last freed first.

#include "blocktable/page_tree.hpp"
#include "kvarena/base/ids.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// One sequence. The next token goes to slot `next_slot` while `room` > 0; with no room it needs the
/// next block of its table, or a new one.
struct Sequence {
  std::int64_t next_slot = 0;      ///< one past the slot of the last token
  std::int32_t room = 0;           ///< tokens that still fit the block of the last token
  std::int32_t length = 0;         ///< tokens
  std::int32_t max_length = 0;     ///< tokens
  std::int32_t filled_blocks = 0;  ///< ceil(length / block_size); the table may hold more
  PageTree table;
  HolderId holder;
  std::uint64_t call_stamp = 0;    ///< the last call that named it
  std::uint32_t generation = 1;    ///< of the slot
  bool exists = false;
  bool may_share_tail = false;     ///< the partly filled last block may have other holders
};

/// Fixed-size table of sequences.
class SequenceTable {
 public:
  explicit SequenceTable(std::int32_t capacity);

  std::int64_t size() const noexcept { return size_; }
  std::int64_t capacity() const noexcept { return static_cast<std::int64_t>(slots_.size()); }
  bool is_full() const noexcept { return size_ == capacity(); }

  /// A fresh record. Requires !is_full().
  SequenceId insert() noexcept;
  void erase(SequenceId id) noexcept;
  /// nullptr when the id does not exist.
  Sequence* find(SequenceId id) noexcept {
    const std::uint64_t slot = id.value & 0xffffffffU;
    if (slot >= slots_.size()) [[unlikely]] return nullptr;
    Sequence& sequence = slots_[slot];
    return sequence.exists && sequence.generation == id.value >> 32 ? &sequence : nullptr;
  }
  const Sequence* find(SequenceId id) const noexcept {
    return const_cast<SequenceTable*>(this)->find(id);
  }
  /// The id that insert() will give next. Requires !is_full().
  SequenceId next_id() const noexcept { return id_of(free_slots_[capacity_left() - 1]); }

  /// Calls visit(SequenceId, const Sequence&) for each, by slot.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].exists) visit(id_of(i), slots_[i]);
    }
  }

 private:
  std::size_t capacity_left() const noexcept { return slots_.size() - static_cast<std::size_t>(size_); }
  SequenceId id_of(std::size_t slot) const noexcept {
    return SequenceId(std::uint64_t{slots_[slot].generation} << 32 | slot);
  }

  std::vector<Sequence> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::int64_t size_ = 0;
};

}  // namespace kvarena
