#include "allocator/holder_table.hpp"

namespace kvarena {

HolderTable::HolderTable(std::int32_t capacity, std::uint64_t first_generation)
    : num_slots_(static_cast<std::size_t>(capacity)),
      slots_(num_slots_),
      free_slots_(num_slots_),
      num_free_(num_slots_) {
  for (std::size_t i = 0; i < free_slots_.size(); ++i) {
    free_slots_[i] = static_cast<std::uint32_t>(free_slots_.size() - 1 - i);
    slots_[i].generation = first_generation;
  }
}

HolderId HolderTable::insert(const HolderInfo& info) noexcept {
  ++size_;
  ++inserted_ever_;
  const std::size_t slot = free_slots_[--num_free_];
  Holder& holder = slots_[slot];
  holder.info = info;
  holder.references = 0;
  holder.reserved = 0;
  holder.bytes = 0;
  holder.registered = true;
  return id_of(slot);
}

void HolderTable::erase(HolderId id) noexcept {
  const std::uint64_t slot = slot_of(id);
  slots_[slot].registered = false;
  --size_;
  if (slots_[slot].generation++ == kLastGeneration) return;  // its generations are used up
  free_slots_[num_free_++] = static_cast<std::uint32_t>(slot);
}

}  // namespace kvarena
