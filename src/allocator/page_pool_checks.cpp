// The figures of a PagePool, and the proof of its lists and counts.

#include "allocator/page_pool.hpp"

#include <bit>

namespace kvarena {

std::int64_t PagePool::bytes(std::int64_t num_pages, std::size_t num_groups,
                             std::int64_t max_holders, EvictionPolicy policy) noexcept {
  const auto groups = static_cast<std::int64_t>(num_groups);
  const auto of_group = static_cast<std::int64_t>(sizeof(BlockGroup) + sizeof(Books) +
                                                  kMaxBlocksPerPage * sizeof(Slot));
  const auto of_page = static_cast<std::int64_t>(sizeof(Page) + sizeof(std::uint32_t));
  const auto of_holder =
      static_cast<std::int64_t>(sizeof(HolderId) + sizeof(std::uint8_t)) +
      groups * static_cast<std::int64_t>(sizeof(std::uint32_t) + sizeof(std::int32_t));
  const std::int64_t order =
      policy == EvictionPolicy::tail_first ? 0 : EvictionOrder::bytes(policy, num_pages);
  return groups * of_group + num_pages * of_page + max_holders * of_holder + order;
}

PageStats PagePool::stats() const noexcept {
  return {.num_pages = num_pages(),
          .free = num_free_,
          .of_groups = num_pages() - num_free_ - num_offline_,
          .offline = num_offline_,
          .evictable = num_idle_,
          .peak_used = peak_used_,
          .turned = turned_};
}

GroupStats PagePool::stats(std::int32_t group) const noexcept {
  const Books& b = books_[index(group)];
  const std::int64_t blocks = b.pages * b.blocks_per_page;
  return {.pages = b.pages,
          .blocks_per_page = b.blocks_per_page,
          .block_bytes = block_bytes(group),
          .free = b.free,
          .referenced = blocks - b.free - b.evictable - b.offline - b.fenced,
          .fenced = b.fenced,
          .evictable = b.evictable,
          .offline = b.offline,
          .stranded = b.free - b.idle_free};
}

bool PagePool::is_settled(const Page& page) const noexcept {
  if (page.mark != 0) return false;
  const bool is_listed = page.bucket != 0 || page.queue == Queue::cached ||
                         page.queue == Queue::idle || page.num_free != 0 || page.num_evictable != 0;
  if (page.group == -1) return !is_listed && page.queue == Queue::none && page.num_offline == 0;
  if (page.queue == Queue::offline) return !is_listed && page.num_offline > 0;
  const std::int32_t held = num_held(page);
  if (held == 0 && page.evictable == 0) return false;  // a page that should be free
  return (page.free & page.evictable) == 0 && page.num_free == std::popcount(page.free) &&
         page.num_evictable == std::popcount(page.evictable) && held >= page.num_offline &&
         page.queue == wanted_queue(page) && page.bucket == wanted_bucket(page) &&
         (!page.is_kept || has_owner(page));
}

/// Whether the neighbours of a page in a list, or the ends of the list, name it.
bool PagePool::is_between(std::uint32_t page, const List& list, std::uint32_t Page::*previous,
                          std::uint32_t Page::*next) const noexcept {
  const std::uint32_t before = pages_[page].*previous;
  const std::uint32_t after = pages_[page].*next;
  const auto exists = [this](std::uint32_t i) { return i == kNone || i < pages_.size(); };
  return exists(before) && exists(after) &&
         (before == kNone ? list.head : pages_[before].*next) == page &&
         (after == kNone ? list.tail : pages_[after].*previous) == page;
}

/// Requires a settled page: its group, bucket and queue are in range.
bool PagePool::is_linked(std::uint32_t page) const noexcept {
  if (page < num_free_ && (free_[page] >= pages_.size() || pages_[free_[page]].group != -1)) {
    return false;
  }
  const Page& p = pages_[page];
  if (p.group == -1 || p.queue == Queue::offline) return true;
  const Books& books = books_[index(p.group)];
  if (order_ != nullptr && p.queue == Queue::idle && !order_->agrees(key_of(page))) return false;
  const bool is_queued = is_in_list(p.queue);
  const List& queue = p.queue == Queue::idle ? idle_ : books.cached;
  return (p.bucket == 0 ||
          is_between(page, books.by_free[p.bucket], &Page::fuller_previous, &Page::fuller_next)) &&
         (!is_queued || is_between(page, queue, &Page::queue_previous, &Page::queue_next));
}

bool PagePool::counts_agree(std::int32_t group) const noexcept {
  const Books& b = books_[index(group)];
  Books found;
  for (const Page& page : pages_) {
    if (page.group != group || page.queue == Queue::offline) continue;
    ++found.pages;
    found.free += page.num_free;
    found.evictable += page.num_evictable;
    found.offline += page.num_offline;
    found.kept_free += page.is_kept ? page.num_free : 0;
    found.kept_evictable += page.is_kept ? page.num_evictable : 0;
    if (page.queue != Queue::idle) continue;
    found.idle_free += page.num_free;
    found.idle_evictable += page.num_evictable;
  }
  return found.pages == b.pages && found.free == b.free && found.evictable == b.evictable &&
         found.offline == b.offline && found.idle_free == b.idle_free &&
         found.idle_evictable == b.idle_evictable && found.kept_free == b.kept_free &&
         found.kept_evictable == b.kept_evictable && b.fenced >= 0;
}

/// Walks a list and calls visit(page) for each. Returns false when the links do not agree, when a
/// visit returns false, and when the list is longer than there are pages.
template <class Visit>
bool PagePool::walk(const List& list, std::uint32_t Page::*next, std::uint32_t Page::*previous,
                    Visit visit) const {
  std::size_t length = 0;
  std::uint32_t before = kNone;
  for (std::uint32_t i = list.head; i != kNone; before = i, i = pages_[i].*next) {
    if (i >= pages_.size() || ++length > pages_.size()) return false;
    if (pages_[i].*previous != before || !visit(i)) return false;
  }
  return list.tail == before;
}

/// Counts in how many queues and buckets each page is.
bool PagePool::count_listings(std::vector<std::uint8_t>& in_queue,
                              std::vector<std::uint8_t>& in_bucket) const {
  const auto queue_is_whole = [&](const List& list, Queue queue, std::size_t group) {
    return walk(list, &Page::queue_next, &Page::queue_previous, [&](std::uint32_t i) {
      ++in_queue[i];
      return pages_[i].queue == queue && (queue == Queue::idle || index(pages_[i].group) == group);
    });
  };
  if (!queue_is_whole(idle_, Queue::idle, 0)) return false;
  for (std::size_t g = 0; g < books_.size(); ++g) {
    if (!queue_is_whole(books_[g].cached, Queue::cached, g)) return false;
    for (std::size_t f = 1; f < books_[g].by_free.size(); ++f) {
      const List& list = books_[g].by_free[f];
      if ((books_[g].filled >> f & 1) != (list.head != kNone ? 1U : 0U)) return false;
      const auto visit = [&](std::uint32_t i) {
        ++in_bucket[i];
        return pages_[i].bucket == f && index(pages_[i].group) == g;
      };
      if (!walk(list, &Page::fuller_next, &Page::fuller_previous, visit)) return false;
    }
  }
  return true;
}

/// The pages of a holder that is registered lead back from its tail.
bool PagePool::owners_are_whole() const {
  for (std::size_t t = 0; t < tails_.size(); ++t) {
    std::uint32_t newer = kNone;
    std::size_t length = 0;
    std::int32_t own = 0;
    for (std::uint32_t i = tails_[t]; i != kNone; newer = i, i = pages_[i].older) {
      if (i >= pages_.size() || ++length > pages_.size() || pages_[i].newer != newer) return false;
      const Page& page = pages_[i];
      if (page.owner != owners_[t / groups_.size()]) return false;
      if (index(page.group) != t % groups_.size() || page.queue == Queue::idle) return false;
      if (page.is_kept != keeps_pages(t / groups_.size())) return false;
      own += page.is_mixed ? 0 : 1;
    }
    if (own != own_pages_[t]) return false;
  }
  return true;
}

/// Together the lists must name each page as often as its state says.
bool PagePool::lists_are_whole() const {
  std::vector<std::uint8_t> in_queue(pages_.size());
  std::vector<std::uint8_t> in_bucket(pages_.size());
  std::vector<std::uint8_t> is_free(pages_.size());
  if (!count_listings(in_queue, in_bucket)) return false;
  if (order_ != nullptr && (order_->size() != num_idle_ || !order_->is_whole())) return false;
  for (std::int64_t i = 0; i < num_free_; ++i) {
    const std::uint32_t page = free_[index(i)];
    if (page >= pages_.size() || pages_[page].group != -1 || is_free[page]++ != 0) return false;
  }
  std::int64_t num_idle = 0;
  for (std::size_t i = 0; i < pages_.size(); ++i) {
    const Page& page = pages_[i];
    const bool is_queued = is_in_list(page.queue);
    const bool is_idle = page.queue == Queue::idle;
    num_idle += is_idle ? 1 : 0;
    if (order_ != nullptr && is_idle && !order_->agrees(key_of(static_cast<std::uint32_t>(i)))) {
      return false;
    }
    if (!is_settled(page) || in_queue[i] != (is_queued ? 1 : 0)) return false;
    if (in_bucket[i] != (page.bucket != 0 ? 1 : 0)) return false;
    if ((is_free[i] != 0) != (page.group == -1)) return false;
  }
  return num_idle == num_idle_ && owners_are_whole();
}

}  // namespace kvarena
