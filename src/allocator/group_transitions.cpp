// The other calls that change blocks in a pool with groups: share, give up, quarantine.

#include "allocator/block_manager_impl.hpp"
#include "kvarena/base/violation.hpp"

#include <utility>

namespace kvarena {
namespace {

constexpr std::size_t kPrefetchDistance = 8;

}  // namespace

/// Counts the pages that could be turned until now and have one of these evictable blocks.
std::int64_t BlockManager::Impl::idle_pages(std::span<const BlockId> ids) noexcept {
  PagePool& pages = *pool.pages();
  std::int64_t count = 0;
  for (const BlockId id : ids) {
    if (pool.state(id) != BlockState::evictable) continue;
    PagePool::Page& page = pages.page(pages.place_of(id).page);
    if (page.queue == PagePool::Queue::idle && std::exchange(page.mark, 1) == 0) ++count;
  }
  for (const BlockId id : ids) pages.page(pages.place_of(id).page).mark = 0;
  return count;
}

/// The blocks have been checked.
Status BlockManager::Impl::retain_in_groups(Holder& holder, std::span<const BlockId> ids) {
  PagePool& pages = *pool.pages();
  const std::int64_t revived = idle_pages(ids);
  if (revived > holder.reserved + usable(Urgency::growth)) {
    return refuse(Resource::page, revived, holder.reserved, Urgency::growth,
                  static_cast<std::uint64_t>(pages.place_of(ids[0]).group));
  }
  ++claim_serial;
  std::int32_t used = -1;  // the page that was counted last
  for (const BlockId id : ids) {
    const BlockPlace place = pages.place_of(id);
    holder.bytes += pages.block_bytes(place.group);
    switch (pool.state(id)) {
      case BlockState::evictable:
        pages.revive(place);
        pool.record(id).word = BlockPool::kHeld | BlockPool::kPublished | 1;
        ++pool.mutable_counts().referenced;
        break;
      case BlockState::fenced:
        pool.count_fenced(id, -1);
        ++pool.mutable_counts().referenced;
        [[fallthrough]];
      default: ++pool.record(id).word; break;
    }
    if (pages.order() == nullptr || place.page == used) continue;
    if (pool.content(id) != BlockContent::published) continue;
    used = place.page;
    pages.order()->use(BlockId(used));
  }
  consume_reservation(holder, revived);
  holder.references += static_cast<std::int64_t>(ids.size());
  references += static_cast<std::int64_t>(ids.size());
  return {};
}

/// Gives up one live reference. A block that keeps fenced references alone is fenced. Returns
/// false, with nothing changed, when the handle is not live.
bool BlockManager::Impl::lower(BlockId id, Generation generation) noexcept {
  if (!pool.contains(id)) return false;
  BlockPool::Record& r = pool.record(id);
  const bool is_live = (r.word & BlockPool::kHeld) != 0 && (r.word & BlockPool::kCount) != 0;
  if (r.generation != generation.value || !is_live) return false;
  if ((--r.word & BlockPool::kCount) == 0 && pool.fence_head(id) != BlockPool::kNoFence) {
    pool.count_fenced(id, 1);
    --pool.mutable_counts().referenced;
  }
  return true;
}

void BlockManager::Impl::undo_lower(BlockId id) noexcept {
  if ((pool.record(id).word++ & BlockPool::kCount) != 0) return;
  if (pool.fence_head(id) == BlockPool::kNoFence) return;
  pool.count_fenced(id, -1);
  ++pool.mutable_counts().referenced;
}

/// First lowers all counts, which can be taken back exactly; then ends the blocks that nobody
/// holds.
Status BlockManager::Impl::release_in_groups(HolderId holder_id, std::span<const BlockId> ids,
                                             std::span<const Generation> generations) {
  Holder& holder = *holders.find(holder_id);
  const auto count = static_cast<std::int64_t>(ids.size());
  std::size_t lowered = 0;
  while (lowered < ids.size() && lower(ids[lowered], generations[lowered])) ++lowered;
  const bool underflows = lowered == ids.size() && holder.references < count;
  if (lowered < ids.size() || underflows) {
    const Status status = underflows ? Status{StatusCode::reference_underflow,
                                              Resource::holder,
                                              Option::none,
                                              0,
                                              holder_id.value,
                                              ids.size(),
                                              static_cast<std::uint64_t>(holder.references)}
                                     : refuse_handle(ids[lowered], generations[lowered]);
    while (lowered-- > 0) undo_lower(ids[lowered]);
    return report_violation(status, "BlockManager::release", name.c_str());
  }
  if (EvictionOrder* order = pool.order(); order != nullptr) order->begin_run(holder_id.value);
  if (ids.size() == 1) {
    end_released_one(holder, ids[0]);
  } else {
    end_released(holder, ids);
  }
  holder.references -= count;
  references -= count;
  releases += ids.size();
  return {};
}

/// Whether nobody holds a block of a list that has been lowered, and it has not been ended yet.
bool BlockManager::Impl::is_unheld(BlockId id) const noexcept {
  const std::uint32_t word = pool.record(id).word;
  return (word & BlockPool::kHeld) != 0 && (word & BlockPool::kCount) == 0 &&
         pool.fence_head(id) == BlockPool::kNoFence;
}

/// The same as end_released for the one block that most calls have. The loop of the other one shows
/// in the time of a step (docs/benchmarks.md).
void BlockManager::Impl::end_released_one(Holder& holder, BlockId id) noexcept {
  PagePool& pages = *pool.pages();
  const BlockPlace place = pages.place_of(id);
  holder.bytes -= pages.block_bytes(place.group);
  if (!is_unheld(id)) return;
  --pool.mutable_counts().referenced;
  if ((pool.record(id).word & BlockPool::kQuarantined) != 0) return pool.drop(id);
  PagePool::Returned returned;
  returned.add(place.slot, pool.end_held(id));
  pages.give_back(static_cast<std::uint32_t>(place.page), returned);
}

/// Blocks that follow one another in a page change it once. A block that is listed twice is ended
/// at the first place.
void BlockManager::Impl::end_released(Holder& holder, std::span<const BlockId> ids) noexcept {
  PagePool& pages = *pool.pages();
  std::uint32_t page = PagePool::kNone;
  PagePool::Returned returned;
  const auto give_back = [&] {
    if (returned.num_freed + returned.num_cached != 0) pages.give_back(page, returned);
    returned = {};
  };
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const BlockId id = ids[i];
    if (i + kPrefetchDistance < ids.size()) {
      __builtin_prefetch(&pages.page(pages.place_of(ids[i + kPrefetchDistance]).page), 1);
    }
    const BlockPlace place = pages.place_of(id);
    holder.bytes -= pages.block_bytes(place.group);
    if (!is_unheld(id)) continue;
    if (static_cast<std::uint32_t>(place.page) != page) {
      give_back();
      page = static_cast<std::uint32_t>(place.page);
    }
    --pool.mutable_counts().referenced;
    if ((pool.record(id).word & BlockPool::kQuarantined) != 0) {
      give_back();
      pool.drop(id);
    } else {
      returned.add(place.slot, pool.end_held(id));
    }
  }
  give_back();
}

/// The page of a free or absent block stays in its group while other blocks of it are held or
/// cached. A holder that keeps its pages counts on this block's place: it is promised a page more.
Result<bool> BlockManager::Impl::quarantine_in_page(BlockId id) {
  PagePool& pages = *pool.pages();
  const BlockPlace place = pages.place_of(id);
  const PagePool::Page& page = pages.page(place.page);
  const bool is_absent = pool.state(id) == BlockState::absent;
  if (is_absent && page.group != -1 && page.group != place.group) {
    return failed_precondition(Resource::block, static_cast<std::uint64_t>(id.value));
  }
  const bool is_available = page.queue == PagePool::Queue::idle || page.group == -1;
  const bool is_kept = page.group != -1 && page.is_kept;
  if ((is_available || is_kept) && usable(Urgency::growth) == 0) {
    return exhausted(Resource::reservation, static_cast<std::uint64_t>(reserved),
                     static_cast<std::uint64_t>(available() - 1));
  }
  if (is_kept) {
    pages.mix(static_cast<std::uint32_t>(place.page));
    ++holders.find(page.owner)->reserved;
    ++reserved;
  }
  pool.take_offline(id);
  return true;
}

}  // namespace kvarena
