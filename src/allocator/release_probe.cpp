#include "allocator/release_probe.hpp"

#include "allocator/block_manager_impl.hpp"

namespace kvarena {

/// A block is held without the reference if it has other references, is fenced or is quarantined. A
/// page comes back with the last of its held blocks: its mark counts those that would be given up.
std::int64_t ReleaseProbe::lower(BlockManager& manager, std::span<const BlockId> ids) noexcept {
  BlockPool& pool = manager.impl_->pool;
  PagePool* const pages = pool.pages();
  std::int64_t returned = 0;
  for (const BlockId id : ids) {
    const std::uint32_t word = --pool.record(id).word;
    const bool is_held = (word & BlockPool::kCount) != 0 || (word & BlockPool::kQuarantined) != 0 ||
                         pool.fence_head(id) != BlockPool::kNoFence;
    if (is_held) continue;
    if (pages == nullptr) {
      ++returned;
      continue;
    }
    PagePool::Page& page = pages->page(pages->place_of(id).page);
    returned += ++page.mark == static_cast<std::uint32_t>(pages->num_held(page)) ? 1 : 0;
  }
  return returned;
}

void ReleaseProbe::raise(BlockManager& manager, std::span<const BlockId> ids) noexcept {
  BlockPool& pool = manager.impl_->pool;
  for (const BlockId id : ids) {
    ++pool.record(id).word;
    if (PagePool* const pages = pool.pages(); pages != nullptr) {
      pages->page(pages->place_of(id).page).mark = 0;
    }
  }
}

void ReleaseProbe::prefetch(const BlockManager& manager, BlockId id) noexcept {
  const BlockPool& pool = manager.impl_->pool;
  pool.prefetch(id);
  pool.prefetch_fence(id);
  if (pool.pages() != nullptr) {
    __builtin_prefetch(&pool.pages()->page(pool.pages()->place_of(id).page), 1);
  }
}

}  // namespace kvarena
