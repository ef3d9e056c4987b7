// The answers of a BlockManager about its pages and groups, and the proof of both levels.

#include "allocator/block_manager_impl.hpp"

namespace kvarena {
namespace {

Status violated(Invariant invariant, std::int64_t subject, std::int64_t expected,
                std::int64_t found) noexcept {
  return {StatusCode::invariant_violated,
          Resource::page,
          Option::none,
          static_cast<std::int32_t>(invariant),
          static_cast<std::uint64_t>(subject),
          static_cast<std::uint64_t>(expected),
          static_cast<std::uint64_t>(found)};
}

}  // namespace

std::int64_t BlockManager::num_pages() const noexcept {
  const PagePool* pages = impl_->pool.pages();
  return pages != nullptr ? pages->num_pages() : impl_->pool.num_blocks();
}

std::span<const BlockGroup> BlockManager::groups() const noexcept {
  const PagePool* pages = impl_->pool.pages();
  return pages != nullptr ? pages->groups() : std::span<const BlockGroup>();
}

BlockPlace BlockManager::place_of(BlockId id) const noexcept {
  const PagePool* pages = impl_->pool.pages();
  return pages != nullptr ? pages->place_of(id) : BlockPlace{id.value, 0, 0};
}

std::span<const BlockId> BlockManager::evicted() const noexcept {
  if (impl_->pool.pages() == nullptr) return impl_->pool.last_evicted(impl_->num_evicted);
  return {impl_->evicted_ids.data(), impl_->num_evicted};
}

std::int64_t BlockManager::refused_demand() const noexcept { return impl_->refused_demand; }

PageStats BlockManager::page_stats() const noexcept { return impl_->page_stats(); }

GroupStats BlockManager::group_stats(std::int32_t group) const noexcept {
  return impl_->pool.pages()->stats(group);
}

/// Without groups a page is a block, and an evictable block is a page that can be turned.
PageStats BlockManager::Impl::page_stats() const noexcept {
  PageStats stats;
  if (pool.pages() != nullptr) {
    stats = pool.pages()->stats();
  } else {
    const StateCounts& counts = pool.counts();
    stats = {.num_pages = pool.num_blocks(),
             .free = counts.free,
             .of_groups = counts.referenced + counts.fenced + counts.evictable,
             .offline = counts.offline,
             .evictable = counts.evictable,
             .peak_used = peak_allocated,
             .turned = allocations};
  }
  stats.reserved = reserved;
  stats.watermark = watermark;
  stats.page_bytes = page_bytes;
  return stats;
}

std::int64_t BlockManager::Impl::num_carved() const noexcept {
  if (pool.pages() == nullptr) return pool.num_blocks();
  std::int64_t blocks = 0;
  for (std::size_t g = 0; g < pool.pages()->num_groups(); ++g) {
    const GroupStats stats = pool.pages()->stats(static_cast<std::int32_t>(g));
    blocks += stats.pages * stats.blocks_per_page;
  }
  return blocks;
}

void BlockManager::Impl::describe_pages(Explanation& e) const noexcept {
  if (pool.pages() == nullptr) return;
  e.pages = page_stats();
  e.num_groups = pool.pages()->num_groups();
  for (std::size_t g = 0; g < e.num_groups; ++g) {
    e.groups[g] = pool.pages()->stats(static_cast<std::int32_t>(g));
    e.kinds[g] = pool.pages()->groups()[g].kind;
  }
}

/// A page comes back when all of its held blocks do. Each of them is counted at the newest of its
/// fence entries, if all of its entries are of tickets up to `last`.
std::int64_t BlockManager::Impl::returning_pages(Ticket last) const noexcept {
  // The marks of pages are for such counts; they are 0 again at the end.
  PagePool& pages = const_cast<PagePool&>(*pool.pages());
  std::int64_t returning = 0;
  const auto for_each_fenced = [&](auto visit) {
    fences.for_each_open(last, [&](Ticket ticket) {
      fences.for_each_entry(ticket, [&](std::uint32_t index) {
        const BlockId block = fences.entry(index).block;
        if (pool.fence_head(block) == index) visit(block, index);
      });
    });
  };
  for_each_fenced([&](BlockId block, std::uint32_t index) {
    const std::uint32_t word = pool.record(block).word;
    if ((word & BlockPool::kCount) != 0 || (word & BlockPool::kQuarantined) != 0) return;
    for (std::uint32_t i = index; i != FenceTable::kNone; i = fences.entry(i).next_of_block) {
      if (fences.entry(i).ticket > last) return;
    }
    PagePool::Page& page = pages.page(pages.place_of(block).page);
    if (static_cast<std::int32_t>(++page.mark) == pages.num_held(page)) ++returning;
  });
  for_each_fenced(
      [&](BlockId block, std::uint32_t) { pages.page(pages.place_of(block).page).mark = 0; });
  return returning;
}

/// The pages of groups are all pages that are neither free nor offline, and the blocks of groups by
/// state are those of the pool.
Status BlockManager::Impl::check_page_totals() const noexcept {
  const PagePool& pages = *pool.pages();
  const PageStats stats = page_stats();
  std::int64_t of_groups = 0;
  StateCounts sums;
  for (std::size_t g = 0; g < pages.num_groups(); ++g) {
    const auto group = static_cast<std::int32_t>(g);
    const GroupStats books = pages.stats(group);
    of_groups += books.pages;
    sums.free += books.free;
    sums.referenced += books.referenced;
    sums.fenced += books.fenced;
    sums.evictable += books.evictable;
    sums.offline += books.offline;
    for (const std::int64_t count : {books.pages, books.free, books.referenced, books.fenced,
                                     books.evictable, books.stranded}) {
      if (count < 0) return violated(Invariant::group_counts, group, 0, count);
    }
    if (!books.balanced()) return violated(Invariant::group_counts, group, 1, 0);
  }
  if (!stats.balanced() || of_groups != stats.of_groups || stats.evictable > of_groups) {
    return violated(Invariant::pages_balance, 0, stats.of_groups, of_groups);
  }
  if (!(sums == pool.counts())) {
    return violated(Invariant::group_counts, -1, pool.counts().free, sums.free);
  }
  return {};
}

Status BlockManager::Impl::check_page_lists() const {
  const PagePool& pages = *pool.pages();
  for (std::size_t g = 0; g < pages.num_groups(); ++g) {
    const auto group = static_cast<std::int32_t>(g);
    if (!pages.counts_agree(group)) return violated(Invariant::group_counts, group, 1, 0);
  }
  if (!pages.lists_are_whole()) return violated(Invariant::page_lists, 0, 1, 0);
  std::int64_t fenced = 0;
  for (std::int64_t i = 0; i < pool.num_blocks(); ++i) {
    fenced += pool.state(BlockId(static_cast<std::int32_t>(i))) == BlockState::fenced ? 1 : 0;
  }
  if (fenced != pool.counts().fenced) {
    return violated(Invariant::state_counts, 0, pool.counts().fenced, fenced);
  }
  return {};
}

/// A slot of a carved page is free, evictable or neither, as its block says; other blocks are
/// neither held nor evictable.
Status BlockManager::Impl::check_place(BlockId id) const noexcept {
  const PagePool& pages = *pool.pages();
  const BlockPlace place = pages.place_of(id);
  const PagePool::Page& page = pages.page(place.page);
  const BlockState state = pool.state(id);
  const PagePool::Slots slot = PagePool::Slots{1} << place.slot;
  const bool is_carved = pages.is_carved(place);
  const bool agrees =
      is_carved ? ((page.free & slot) != 0) == (state == BlockState::free) &&
                      ((page.evictable & slot) != 0) == (state == BlockState::evictable) &&
                      state != BlockState::absent
                : state == BlockState::absent ||
                      (state == BlockState::offline && page.group == place.group);
  if (!agrees) return violated(Invariant::state_counts, place.page, 1, 0);
  const bool is_first = place.group == 0 && place.slot == 0;
  if (is_first &&
      !(pages.is_settled(page) && pages.is_linked(static_cast<std::uint32_t>(place.page)))) {
    return violated(Invariant::page_lists, place.page, 1, 0);
  }
  return {};
}

}  // namespace kvarena
