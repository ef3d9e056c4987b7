#include "blocktable/sequence_table.hpp"

namespace kvarena {

SequenceTable::SequenceTable(std::int32_t capacity)
    : num_slots_(static_cast<std::size_t>(capacity)), slots_(num_slots_), free_slots_(num_slots_) {
  for (std::size_t i = 0; i < free_slots_.size(); ++i) {
    free_slots_[i] = static_cast<std::uint32_t>(free_slots_.size() - 1 - i);
  }
}

SequenceId SequenceTable::new_id(std::uint64_t serial) const noexcept {
  return SequenceId(serial * kMaxSlots + free_slots_[capacity_left() - 1]);
}

Sequence& SequenceTable::insert(SequenceId id) noexcept {
  ++size_;
  Sequence& sequence = slots_[slot_of(id)];
  sequence = Sequence{};
  sequence.id = id;
  return sequence;
}

void SequenceTable::erase(SequenceId id) noexcept {
  slots_[slot_of(id)].id = kNoSequence;
  --size_;
  free_slots_[capacity_left() - 1] = static_cast<std::uint32_t>(slot_of(id));
}

}  // namespace kvarena
