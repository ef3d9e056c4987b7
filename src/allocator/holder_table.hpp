#pragma once

/// @file
/// `HolderTable`: the registered holders of a BlockManager and their totals. The slot freed last is
/// reused first. An id contains the slot's generation, so it is never reused. A slot whose
/// generations are used up stays empty.

#include "kvarena/allocator/block_manager.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// One registered holder.
struct Holder {
  HolderInfo info;
  std::int64_t references = 0;   ///< block references, without fenced ones
  std::int64_t reserved = 0;     ///< promised blocks
  std::int64_t bytes = 0;        ///< of the blocks referenced, in a pool with groups
  std::uint64_t call_stamp = 0;  ///< the last allocate_each call that named it
  std::uint64_t generation = 1;  ///< of the slot: registrations so far, plus one
  bool registered = false;
};

/// Fixed-size table of holders.
class HolderTable {
 public:
  static constexpr int kSlotBits = 24;  ///< the low bits of an id; the slot's generation is above
                                        ///< them
  static constexpr std::int64_t kMaxSlots = std::int64_t{1} << kSlotBits;
  static constexpr std::uint64_t kLastGeneration = (std::uint64_t{1} << (64 - kSlotBits)) - 1;

  /// Makes a table. `capacity` is 1 .. kMaxSlots. Generations begin at `first_generation`; tests
  /// set it.
  explicit HolderTable(std::int32_t capacity, std::uint64_t first_generation = 1);

  std::int64_t size() const noexcept { return size_; }
  std::int64_t capacity() const noexcept { return static_cast<std::int64_t>(num_slots_); }
  std::uint64_t inserted_ever() const noexcept { return inserted_ever_; }
  bool is_full() const noexcept { return num_free_ == 0; }

  /// Registers a holder and returns its id. Requires !is_full().
  HolderId insert(const HolderInfo& info) noexcept;
  /// Removes a holder. Requires a registered holder.
  void erase(HolderId id) noexcept;
  /// Returns the holder, or nullptr when the id is not registered.
  Holder* find(HolderId id) noexcept {
    const std::uint64_t slot = slot_of(id);
    if (slot >= num_slots_) return nullptr;
    Holder& holder = slots_[slot];
    return holder.registered && holder.generation == id.value >> kSlotBits ? &holder : nullptr;
  }
  const Holder* find(HolderId id) const noexcept {
    return const_cast<HolderTable*>(this)->find(id);
  }

  /// Returns the slot of an id, which is below capacity() for a registered holder.
  static std::uint64_t slot_of(HolderId id) noexcept {
    return id.value & static_cast<std::uint64_t>(kMaxSlots - 1);
  }

  /// Calls visit(HolderId, const Holder&) for each registered holder, by slot.
  template <class Visit>
  void for_each(Visit visit) const {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].registered) visit(id_of(i), slots_[i]);
    }
  }

 private:
  HolderId id_of(std::size_t slot) const noexcept {
    return HolderId(slots_[slot].generation << kSlotBits | slot);
  }

  std::size_t num_slots_;  // asking slots_ for it would divide
  std::vector<Holder> slots_;
  std::vector<std::uint32_t> free_slots_;  // [0, num_free_); the last one is used next
  std::size_t num_free_;
  std::int64_t size_ = 0;
  std::uint64_t inserted_ever_ = 0;
};

}  // namespace kvarena
