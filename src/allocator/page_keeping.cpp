// Pages and their owners. An owner may keep its pages: nobody takes single slots of them then. A
// page of one block has no owner.

#include "allocator/holder_table.hpp"
#include "allocator/page_pool.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {

bool PagePool::has_owner(const Page& page) const noexcept {
  return page.owner != kNoHolder && owners_[HolderTable::slot_of(page.owner)] == page.owner;
}

std::uint32_t PagePool::turn_whole(std::int32_t group) noexcept {
  const std::uint32_t page = free_[index(--num_free_)];
  peak_used_ = std::max(peak_used_, num_pages() - num_free_);
  ++turned_;
  Page& p = pages_[page];
  p.group = static_cast<std::int8_t>(group);
  ++p.turns;
  p.is_mixed = false;
  p.is_kept = false;
  ++books_[index(group)].pages;
  return page;
}

/// A page of one held block is in no list and has no owner.
void PagePool::give_back_whole(std::uint32_t page) noexcept {
  if (order_ != nullptr) order_->forget(key_of(page));
  Page& p = pages_[page];
  --books_of(p).pages;
  p.group = -1;
  free_[index(num_free_++)] = page;
}

/// Counts the slots of a page among those that are kept, or not any more. The lists are the
/// caller's.
void PagePool::set_kept(Page& page, bool kept) noexcept {
  if (page.is_kept == kept) return;
  page.is_kept = kept;
  Books& books = books_of(page);
  books.kept_free += kept ? page.num_free : -page.num_free;
  books.kept_evictable += kept ? page.num_evictable : -page.num_evictable;
}

/// The pages of a holder leave the lists from which single slots are taken, or come back: the page
/// turned last first, group by group.
void PagePool::relist(std::size_t holder_slot, bool kept) noexcept {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (std::uint32_t page = tails_[holder_slot * groups_.size() + g]; page != kNone;
         page = pages_[page].older) {
      Page& p = pages_[page];
      set_kept(p, kept);
      if (p.bucket != wanted_bucket(p)) move_to_bucket(page, wanted_bucket(p));
      if (p.queue != wanted_queue(p)) move_to_queue(page, wanted_queue(p));
    }
  }
}

void PagePool::keep_pages(std::size_t holder_slot) noexcept {
  if (std::exchange(keeps_[holder_slot], std::uint8_t{1}) == 0) relist(holder_slot, true);
}

void PagePool::mix(std::uint32_t page) noexcept {
  Page& p = pages_[page];
  if (std::exchange(p.is_mixed, true) || !has_owner(p)) return;
  --own_pages_[HolderTable::slot_of(p.owner) * groups_.size() + index(p.group)];
}

/// The holder does not continue the page. Its page before this one becomes its tail.
void PagePool::disown(std::uint32_t page) noexcept {
  Page& p = pages_[page];
  const std::size_t slot = HolderTable::slot_of(p.owner);
  const bool is_owned = has_owner(p);
  p.owner = kNoHolder;
  set_kept(p, false);
  if (!is_owned) return;
  if (!p.is_mixed) --own_pages_[slot * groups_.size() + index(p.group)];
  std::uint32_t& tail = tails_[slot * groups_.size() + index(p.group)];
  (p.newer == kNone ? tail : pages_[p.newer].older) = p.older;
  if (p.older != kNone) pages_[p.older].newer = p.newer;
}

void PagePool::forget_holder(std::size_t holder_slot) noexcept {
  if (std::exchange(keeps_[holder_slot], std::uint8_t{0}) != 0) relist(holder_slot, false);
  owners_[holder_slot] = kNoHolder;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    tails_[holder_slot * groups_.size() + g] = kNone;
    own_pages_[holder_slot * groups_.size() + g] = 0;
  }
}

}  // namespace kvarena
