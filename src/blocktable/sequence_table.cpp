#include "blocktable/sequence_table.hpp"

namespace kvarena {

SequenceTable::SequenceTable(std::int32_t capacity)
    : slots_(static_cast<std::size_t>(capacity)), free_slots_(static_cast<std::size_t>(capacity)) {
  for (std::size_t i = 0; i < free_slots_.size(); ++i) {
    free_slots_[i] = static_cast<std::uint32_t>(free_slots_.size() - 1 - i);
  }
}

SequenceId SequenceTable::insert() noexcept {
  const SequenceId id = next_id();
  ++size_;
  Sequence& sequence = slots_[id.value & 0xffffffffU];
  const std::uint32_t generation = sequence.generation;
  sequence = Sequence{};
  sequence.generation = generation;
  sequence.exists = true;
  return id;
}

void SequenceTable::erase(SequenceId id) noexcept {
  const std::size_t slot = id.value & 0xffffffffU;
  slots_[slot].exists = false;
  ++slots_[slot].generation;
  --size_;
  free_slots_[capacity_left() - 1] = static_cast<std::uint32_t>(slot);
}

}  // namespace kvarena
