// References on the blocks of a list, in one pass for the usual cases.

#include "allocator/block_pool.hpp"

namespace kvarena {

std::size_t BlockPool::count_retainable(std::span<const BlockId> ids,
                                        std::span<const Generation> generations,
                                        std::size_t references,
                                        std::int64_t& revived) const noexcept {
  std::size_t i = 0;
  for (; i < ids.size(); ++i) {
    if (!contains(ids[i])) break;
    const Record& r = records_[index(ids[i])];
    if (r.generation != generations[i].value) break;
    if ((r.word & (kHeld | kPublished | kQuarantined)) == kPublished) {
      ++revived;
      continue;
    }
    const std::uint32_t live = r.word & kCount;
    if ((r.word & kHeld) == 0 || live == 0 || kCount - live <= references) break;
  }
  return i;
}

/// A block named twice is revived once.
std::int64_t BlockPool::retain(std::span<const BlockId> ids) noexcept {
  std::int64_t revived = 0;
  for (const BlockId id : ids) {
    Record& r = records_[index(id)];
    if ((r.word & kHeld) == 0) {
      ++revived;
      unlink_evictable(id);
      r.word = kHeld | kPublished | 1;
    } else {
      const bool was_fenced = (r.word & kCount) == 0;
      counts_.fenced -= was_fenced ? 1 : 0;
      counts_.referenced += was_fenced ? 1 : 0;
      ++r.word;
    }
    count_use(id);
  }
  counts_.referenced += revived;
  return revived;
}

/// Leaves all cases that are not usual to the caller.
std::size_t BlockPool::release_leading(std::span<const BlockId> ids,
                                       std::span<const Generation> generations,
                                       bool any_fenced) noexcept {
  BlockId* top = free_stack_.data() + counts_.free;
  std::int64_t cached = 0;
  std::size_t i = 0;
  for (; i < ids.size(); ++i) {
    constexpr auto kAhead = static_cast<std::size_t>(kPrefetchDistance);
    if (i + kAhead < ids.size() && contains(ids[i + kAhead])) {
      __builtin_prefetch(&records_[index(ids[i + kAhead])], 1);
    }
    if (!contains(ids[i])) [[unlikely]]
      break;
    Record& r = records_[index(ids[i])];
    if (r.generation != generations[i].value) [[unlikely]]
      break;
    if ((r.word & ~kPublished) == (kHeld | 1)) {
      if (any_fenced && side_[index(ids[i])] != kNoFence) [[unlikely]]
        break;
      if ((r.word & kPublished) != 0) {
        append_evictable(ids[i]);
        ++cached;
      } else {
        r = {0, r.generation + 1};
        *top++ = ids[i];
      }
    } else if ((r.word & kHeld) != 0 && (r.word & kCount) > 1) {
      --r.word;
    } else {
      break;
    }
  }
  const std::int64_t freed = top - (free_stack_.data() + counts_.free);
  counts_.free += freed;
  counts_.referenced -= freed + cached;
  return i;
}

}  // namespace kvarena
