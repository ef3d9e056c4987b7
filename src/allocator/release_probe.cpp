#include "allocator/release_probe.hpp"

#include "allocator/block_manager_impl.hpp"

namespace kvarena {

/// A block is held without the reference if it has other references, is fenced or is quarantined.
std::int64_t ReleaseProbe::lower(BlockManager& manager, std::span<const BlockId> ids) noexcept {
  BlockPool& pool = manager.impl_->pool;
  std::int64_t returned = 0;
  for (const BlockId id : ids) {
    const std::uint32_t word = --pool.record(id).word;
    const bool is_held = (word & BlockPool::kCount) != 0 || (word & BlockPool::kQuarantined) != 0 ||
                         pool.fence_head(id) != BlockPool::kNoFence;
    returned += is_held ? 0 : 1;
  }
  return returned;
}

void ReleaseProbe::raise(BlockManager& manager, std::span<const BlockId> ids) noexcept {
  for (const BlockId id : ids) ++manager.impl_->pool.record(id).word;
}

}  // namespace kvarena
