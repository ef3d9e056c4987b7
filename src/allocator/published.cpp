// The blocks whose content others may find.

#include "allocator/block_manager_impl.hpp"

namespace kvarena {

/// Reads the words, because each block of a long prefix is asked for.
std::int64_t BlockManager::count_published(std::span<const BlockId> ids,
                                           std::span<const Generation> generations) const noexcept {
  const BlockPool& pool = impl_->pool;
  std::size_t i = 0;
  for (; i < ids.size(); ++i) {
    const BlockPool::Record& r = pool.record(ids[i]);
    // In the word of an evictable block, the bit of kWriting is part of a link.
    const std::uint32_t content =
        (r.word & BlockPool::kHeld) != 0 ? BlockPool::kContent : BlockPool::kPublished;
    if ((r.word & (content | BlockPool::kQuarantined)) != BlockPool::kPublished) break;
    if (r.generation != generations[i].value) break;
  }
  return static_cast<std::int64_t>(i);
}

}  // namespace kvarena
