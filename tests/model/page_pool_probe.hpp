#pragma once

/// @file
/// `PagePoolProbe`: plants faults into the pages of a pool. Each returns whether there was a place
/// for it.

#include "allocator/page_pool.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// Faults, planted into the pages of a manager.
struct PagePoolProbe {
  /// A free page stays in its group although no block of it is held.
  static bool keep_empty_page(PagePool& pages) {
    if (pages.num_free_ == 0) return false;
    PagePool::Page& page = pages.pages_[pages.free_[static_cast<std::size_t>(--pages.num_free_)]];
    page.group = 0;
    page.free = pages.books_[0].all_slots();
    ++pages.books_[0].pages;
    pages.change(page, pages.books_[0].blocks_per_page, 0);
    return true;
  }
  /// A holder's own page is one of another group that has a free slot.
  static bool point_to_other_group(PagePool& pages) {
    for (std::size_t t = 0; t < pages.tails_.size(); ++t) {
      for (std::uint32_t p = 0; pages.tails_[t] != PagePool::kNone && p < pages.pages_.size();
           ++p) {
        const PagePool::Page& page = pages.pages_[p];
        const auto group = static_cast<std::int8_t>(t % pages.groups_.size());
        if (page.group == -1 || page.group == group) continue;
        if ((page.free & pages.books_[t % pages.groups_.size()].all_slots()) == 0) continue;
        pages.tails_[t] = p;
        return true;
      }
    }
    return false;
  }
  /// The page that goes next becomes the one that goes last.
  static bool renew_first(PagePool& pages) {
    if (pages.order_ == nullptr || pages.num_idle_ < 2) return false;
    pages.order_->touch(pages.order_->next());
    return true;
  }
  /// An idle page leaves the order.
  static bool lose_idle(PagePool& pages) {
    if (pages.order_ == nullptr || pages.num_idle_ == 0) return false;
    pages.order_->hold(pages.order_->next());
    return true;
  }
  /// A free page is forgotten.
  static bool lose_page(PagePool& pages) {
    if (pages.num_free_ == 0) return false;
    --pages.num_free_;
    return true;
  }
};

}  // namespace kvarena
