#include "allocator/holder_table.hpp"

namespace kvarena {

HolderTable::HolderTable(std::int32_t capacity)
    : slots_(static_cast<std::size_t>(capacity)), free_slots_(static_cast<std::size_t>(capacity)) {
  for (std::size_t i = 0; i < free_slots_.size(); ++i) {
    free_slots_[i] = static_cast<std::uint32_t>(free_slots_.size() - 1 - i);
  }
}

HolderId HolderTable::insert(const HolderInfo& info) noexcept {
  ++size_;
  ++inserted_ever_;
  const std::size_t slot = free_slots_[slots_.size() - static_cast<std::size_t>(size_)];
  Holder& holder = slots_[slot];
  holder.info = info;
  holder.references = 0;
  holder.reserved = 0;
  holder.registered = true;
  return id_of(slot);
}

void HolderTable::erase(HolderId id) noexcept {
  const std::size_t slot = id.value & 0xffffffffU;
  slots_[slot].registered = false;
  ++slots_[slot].generation;
  free_slots_[slots_.size() - static_cast<std::size_t>(size_)] = static_cast<std::uint32_t>(slot);
  --size_;
}

}  // namespace kvarena
