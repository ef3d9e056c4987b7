#include "allocator/own_pages.hpp"

#include "allocator/block_manager_impl.hpp"

namespace kvarena {

const PagePool& OwnPages::pages(const BlockManager& manager) noexcept {
  return *manager.impl_->pool.pages();
}

std::int64_t OwnPages::free_slots(const BlockManager& manager, HolderId holder,
                                  std::int32_t group) noexcept {
  return manager.impl_->pool.pages()->own_slots(HolderTable::slot_of(holder), group);
}

std::int64_t OwnPages::count(const BlockManager& manager, HolderId holder,
                             std::int32_t group) noexcept {
  return manager.impl_->pool.pages()->num_own_pages(HolderTable::slot_of(holder), group);
}

std::size_t OwnPages::demand_of_evicted(const BlockManager& manager, std::size_t i) noexcept {
  return manager.impl_->evicting_demands[i];
}

}  // namespace kvarena
