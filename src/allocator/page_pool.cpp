#include "allocator/page_pool.hpp"

#include "allocator/block_pool.hpp"
#include "allocator/holder_table.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace kvarena {
namespace {

constexpr int kIdBits = 29;

PagePool::Slots bit_of(std::int32_t slot) noexcept { return PagePool::Slots{1} << slot; }

/// Takes a page out of a list that is linked by two members.
template <auto kPrevious, auto kNext, class List>
void unlink(std::vector<PagePool::Page>& pages, List& list, std::uint32_t page) noexcept {
  const std::uint32_t previous = pages[page].*kPrevious;
  const std::uint32_t next = pages[page].*kNext;
  (previous == PagePool::kNone ? list.head : pages[previous].*kNext) = next;
  (next == PagePool::kNone ? list.tail : pages[next].*kPrevious) = previous;
  pages[page].*kPrevious = PagePool::kNone;
  pages[page].*kNext = PagePool::kNone;
}

template <auto kPrevious, auto kNext, class List>
void push_front(std::vector<PagePool::Page>& pages, List& list, std::uint32_t page) noexcept {
  pages[page].*kNext = list.head;
  (list.head == PagePool::kNone ? list.tail : pages[list.head].*kPrevious) = page;
  list.head = page;
}

template <auto kPrevious, auto kNext, class List>
void push_back(std::vector<PagePool::Page>& pages, List& list, std::uint32_t page) noexcept {
  pages[page].*kPrevious = list.tail;
  (list.tail == PagePool::kNone ? list.head : pages[list.tail].*kNext) = page;
  list.tail = page;
}

constexpr auto kFullerPrevious = &PagePool::Page::fuller_previous;
constexpr auto kFullerNext = &PagePool::Page::fuller_next;
constexpr auto kQueuePrevious = &PagePool::Page::queue_previous;
constexpr auto kQueueNext = &PagePool::Page::queue_next;

}  // namespace

std::int64_t PagePool::ids_per_page(std::span<const BlockGroup> groups) noexcept {
  std::int64_t ids = 0;
  for (const BlockGroup& group : groups) ids += group.blocks_per_page;
  return ids;
}

/// The reciprocal divides exactly: ids have kIdBits bits, and it is rounded up in the last of
/// shift_ = kIdBits + ceil(log2(ids a page)) bits. The free pages are in reverse, so that pages 0,
/// 1, 2, ... are turned first.
PagePool::PagePool(std::int64_t num_pages, std::span<const BlockGroup> groups,
                   std::int64_t max_holders, EvictionPolicy policy, StateCounts& totals)
    : groups_(groups.begin(), groups.end()),
      books_(groups.size()),
      pages_(index(num_pages)),
      free_(index(num_pages)),
      tails_(index(max_holders) * groups.size(), kNone),
      own_pages_(index(max_holders) * groups.size()),
      owners_(index(max_holders), kNoHolder),
      keeps_(index(max_holders)),
      order_(policy == EvictionPolicy::tail_first
                 ? nullptr
                 : std::make_unique<EvictionOrder>(policy, num_pages)),
      num_free_(num_pages),
      totals_(&totals) {
  slots_.reserve(index(ids_per_page(groups)));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    books_[g].blocks_per_page = groups[g].blocks_per_page;
    books_[g].first_place = static_cast<std::int32_t>(slots_.size());
    for (std::int32_t slot = 0; slot < groups[g].blocks_per_page; ++slot) {
      slots_.push_back({static_cast<std::int16_t>(g), static_cast<std::int16_t>(slot)});
    }
  }
  shift_ = kIdBits + static_cast<int>(std::bit_width(slots_.size() - 1));
  reciprocal_ = (std::uint64_t{1} << shift_) / slots_.size() + 1;
  for (std::size_t i = 0; i < free_.size(); ++i) {
    free_[i] = static_cast<std::uint32_t>(free_.size() - 1 - i);
  }
}

// ---- lists --------------------------------------------------------------------------------------

/// Changes the counts of a carved page, of its group and of all groups.
void PagePool::change(Page& page, std::int32_t free, std::int32_t evictable) noexcept {
  Books& books = books_of(page);
  page.num_free = static_cast<std::uint8_t>(page.num_free + free);
  page.num_evictable = static_cast<std::uint8_t>(page.num_evictable + evictable);
  books.free += free;
  books.evictable += evictable;
  totals_->free += free;
  totals_->evictable += evictable;
  if (page.is_kept) {
    books.kept_free += free;
    books.kept_evictable += evictable;
  }
  if (page.queue != Queue::idle) return;
  books.idle_free += free;
  books.idle_evictable += evictable;
}

void PagePool::move_to_bucket(std::uint32_t page, std::uint8_t bucket) noexcept {
  Page& p = pages_[page];
  Books& books = books_of(p);
  if (p.bucket != 0) {
    List& list = books.by_free[p.bucket];
    unlink<kFullerPrevious, kFullerNext>(pages_, list, page);
    if (list.head == kNone) books.filled &= ~bit_of(p.bucket);
  }
  p.bucket = bucket;
  if (bucket == 0) return;
  push_front<kFullerPrevious, kFullerNext>(pages_, books.by_free[bucket], page);
  books.filled |= bit_of(bucket);
}

void PagePool::move_to_queue(std::uint32_t page, Queue queue) noexcept {
  Page& p = pages_[page];
  if (is_in_list(p.queue)) unlink<kQueuePrevious, kQueueNext>(pages_, queue_of(p), page);
  if (p.queue == Queue::idle) {
    count_idle(p, -1);
    if (order_ != nullptr) order_->hold(key_of(page));
  }
  p.queue = queue;
  if (is_in_list(queue)) push_back<kQueuePrevious, kQueueNext>(pages_, queue_of(p), page);
  if (queue != Queue::idle) return;
  count_idle(p, 1);
  if (order_ != nullptr) order_->insert(key_of(page));
}

/// A page became idle (1), or is not any more (-1).
void PagePool::count_idle(const Page& page, std::int64_t sign) noexcept {
  Books& books = books_of(page);
  books.idle_free += sign * page.num_free;
  books.idle_evictable += sign * page.num_evictable;
  num_idle_ += sign;
}

/// The page leaves its group, its owner and all lists. Its slots are of no group any more.
void PagePool::leave_group(std::uint32_t page) noexcept {
  Page& p = pages_[page];
  if (p.bucket != 0) move_to_bucket(page, 0);
  if (p.queue != Queue::none) move_to_queue(page, Queue::none);
  if (order_ != nullptr) order_->forget(key_of(page));
  disown(page);
  change(p, -p.num_free, -p.num_evictable);
  p.free = 0;
  p.evictable = 0;
  --books_of(p).pages;
}

/// The queue that the slots of a carved page call for.
PagePool::Queue PagePool::wanted_queue(const Page& page) const noexcept {
  const std::int32_t held = num_held(page);
  if (page.num_evictable == 0) {
    return held > 0 && held == page.num_offline ? Queue::offline : Queue::none;
  }
  return held == 0 ? Queue::idle : page.is_kept ? Queue::none : Queue::cached;
}

/// The list by free slots that the slots of a carved page call for; 0: none.
std::uint8_t PagePool::wanted_bucket(const Page& page) const noexcept {
  return page.is_kept || num_held(page) == 0 ? std::uint8_t{0} : page.num_free;
}

/// Moves a carved page to where its slots call for.
void PagePool::settle(std::uint32_t page) noexcept {
  Page& p = pages_[page];
  const std::int32_t held = num_held(p);
  if (held == 0 && p.num_evictable == 0) {
    leave_group(page);
    p.group = -1;
    free_[index(num_free_++)] = page;
    return;
  }
  const Queue queue = wanted_queue(p);
  if (queue == Queue::offline) {
    books_of(p).offline -= p.num_offline;
    totals_->offline -= p.num_offline;
    leave_group(page);
    p.queue = Queue::offline;
    ++num_offline_;
    return;
  }
  const std::uint8_t bucket = wanted_bucket(p);
  if (bucket != p.bucket) move_to_bucket(page, bucket);
  if (queue == p.queue) return;
  move_to_queue(page, queue);
  if (queue == Queue::idle) disown(page);
}

// ---- taking -------------------------------------------------------------------------------------

PagePool::Turned PagePool::turn(HolderId holder, std::size_t holder_slot,
                                std::int32_t group) noexcept {
  Turned turned{kNone, 0, 0};
  if (num_free_ > 0) {
    turned.page = free_[index(--num_free_)];
  } else {
    turned.page = first_idle();
    turned.evicted_group = pages_[turned.page].group;
    turned.evicted = pages_[turned.page].evictable;
    leave_group(turned.page);
  }
  peak_used_ = std::max(peak_used_, num_pages() - num_free_);
  ++turned_;
  Page& p = pages_[turned.page];
  Books& books = books_[index(group)];
  p.group = static_cast<std::int8_t>(group);
  ++p.turns;
  p.free = books.all_slots();
  p.is_mixed = false;
  p.is_kept = books.blocks_per_page > 1 && keeps_pages(holder_slot);
  ++books.pages;
  change(p, books.blocks_per_page, 0);
  // A page of one block has no slots for its holder to continue with.
  if (books.blocks_per_page == 1) return turned;
  owners_[holder_slot] = holder;
  ++own_pages_[holder_slot * groups_.size() + index(group)];
  std::uint32_t& tail = tails_[holder_slot * groups_.size() + index(group)];
  p.owner = holder;
  p.older = tail;
  p.newer = kNone;
  if (tail != kNone) pages_[tail].newer = turned.page;
  tail = turned.page;
  return turned;
}

BlockId PagePool::take_own(std::uint32_t page, std::int32_t group) noexcept {
  Page& p = pages_[page];
  const BlockId id = id_of(page, group, std::countr_zero(p.free));
  p.free &= p.free - 1;
  change(p, -1, 0);
  if (!p.is_kept) move_to_bucket(page, p.num_free);
  return id;
}

/// The page was not idle, and has held blocks now: only its number of free slots changes.
PagePool::Slots PagePool::take(std::uint32_t page, std::int64_t count) noexcept {
  Page& p = pages_[page];
  const auto taken = static_cast<std::int32_t>(std::min<std::int64_t>(count, p.num_free));
  Slots left = p.free;
  for (std::int32_t i = 0; i < taken; ++i) left &= left - 1;
  const Slots slots = p.free ^ left;
  p.free = left;
  change(p, -taken, 0);
  if (p.bucket != wanted_bucket(p)) move_to_bucket(page, wanted_bucket(p));
  return slots;
}

PagePool::Found PagePool::take_evictable(std::int32_t group) noexcept {
  const std::uint32_t page = books_[index(group)].cached.head;
  const auto slot = static_cast<std::int32_t>(std::bit_width(pages_[page].evictable)) - 1;
  pages_[page].evictable &= ~bit_of(slot);
  change(pages_[page], 0, -1);
  settle(page);
  return {page, slot};
}

PagePool::Found PagePool::take_fullest(std::int32_t group) noexcept {
  const Books& books = books_[index(group)];
  const std::uint32_t page = books.by_free[index(std::countr_zero(books.filled))].head;
  const auto slot = static_cast<std::int32_t>(std::countr_zero(pages_[page].free));
  pages_[page].free &= ~bit_of(slot);
  change(pages_[page], -1, 0);
  settle(page);
  return {page, slot};
}

// ---- giving back --------------------------------------------------------------------------------

void PagePool::give_back(std::uint32_t page, const Returned& returned) noexcept {
  Page& p = pages_[page];
  if (returned.num_freed != 0 && books_of(p).blocks_per_page == 1) return give_back_whole(page);
  p.free |= returned.freed;
  p.evictable |= returned.cached;
  change(p, returned.num_freed, returned.num_cached);
  settle(page);
}

void PagePool::revive(const BlockPlace& place) noexcept {
  Page& p = page(place.page);
  p.evictable &= ~bit_of(place.slot);
  change(p, 0, -1);
  settle(static_cast<std::uint32_t>(place.page));
}

void PagePool::forget_cached(const BlockPlace& place) noexcept {
  Page& p = page(place.page);
  p.evictable &= ~bit_of(place.slot);
  p.free |= bit_of(place.slot);
  change(p, 1, -1);
  settle(static_cast<std::uint32_t>(place.page));
}

/// A page that is free or offline remembers its offline slots for the group.
void PagePool::take_offline(const BlockPlace& place) noexcept {
  const auto raw = static_cast<std::uint32_t>(place.page);
  Page& p = pages_[raw];
  ++p.num_offline;
  if (p.queue == Queue::offline) return;
  if (p.group == -1) {
    const auto end = free_.begin() + num_free_;
    const auto found = std::find(free_.begin(), end, raw);
    std::copy(found + 1, end, found);
    --num_free_;
    p.group = static_cast<std::int8_t>(place.group);
    p.queue = Queue::offline;
    ++num_offline_;
    peak_used_ = std::max(peak_used_, num_pages() - num_free_);
    return;
  }
  ++books_of(p).offline;
  ++totals_->offline;
  const Slots slot = bit_of(place.slot);
  change(p, (p.free & slot) != 0 ? -1 : 0, (p.evictable & slot) != 0 ? -1 : 0);
  p.free &= ~slot;
  p.evictable &= ~slot;
  settle(raw);
}

void PagePool::bring_online(const BlockPlace& place) noexcept {
  const auto raw = static_cast<std::uint32_t>(place.page);
  Page& p = pages_[raw];
  --p.num_offline;
  if (p.queue != Queue::offline) {
    --books_of(p).offline;
    --totals_->offline;
    p.free |= bit_of(place.slot);
    change(p, 1, 0);
    return settle(raw);
  }
  if (p.num_offline != 0) return;
  p.queue = Queue::none;
  p.group = -1;
  --num_offline_;
  free_[index(num_free_++)] = raw;
}

}  // namespace kvarena
