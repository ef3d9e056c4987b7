// What the plain model of pages and groups counts.

#include "model/naive_pages.hpp"

#include <algorithm>

namespace kvarena::model {

PageStats NaivePages::page_stats() const {
  PageStats stats;
  stats.num_pages = static_cast<std::int64_t>(pages_.size());
  for (std::size_t p = 0; p < pages_.size(); ++p) {
    if (pages_[p].group == -1) {
      ++stats.free;
    } else if (!pages_[p].in_service) {
      ++stats.offline;
    } else {
      ++stats.of_groups;
      stats.evictable += slots_of(p).is_idle() ? 1 : 0;
    }
  }
  for (const auto& [id, holder] : holders_) stats.reserved += holder.reserved;
  stats.watermark = watermark_;
  stats.peak_used = peak_used_;
  stats.turned = turned_;
  return stats;
}

GroupStats NaivePages::group_stats(std::int32_t group) const {
  GroupStats stats;
  stats.blocks_per_page = num_slots(group);
  stats.block_bytes = groups_[static_cast<std::size_t>(group)].block_bytes;
  for (std::size_t p = 0; p < pages_.size(); ++p) {
    if (pages_[p].group != group || !pages_[p].in_service) continue;
    ++stats.pages;
    const bool is_idle = slots_of(p).is_idle();
    for (int slot = 0; slot < num_slots(group); ++slot) {
      switch (state(id_of(p, group, slot))) {
        case BlockState::free:
          ++stats.free;
          stats.stranded += is_idle ? 0 : 1;
          break;
        case BlockState::referenced: ++stats.referenced; break;
        case BlockState::fenced: ++stats.fenced; break;
        case BlockState::evictable: ++stats.evictable; break;
        case BlockState::offline: ++stats.offline; break;
        case BlockState::absent: break;
      }
    }
  }
  return stats;
}

/// Pages whose held blocks all come back.
std::int64_t NaivePages::returning(Ticket last) const {
  std::int64_t count = 0;
  for (std::size_t p = 0; p < pages_.size(); ++p) {
    if (pages_[p].group == -1 || !pages_[p].in_service) continue;
    bool all = true;
    bool any = false;
    for (int slot = 0; slot < num_slots(pages_[p].group); ++slot) {
      const Block& b = at(id_of(p, pages_[p].group, slot));
      if (!b.is_held() && !b.offline) continue;
      any = true;
      all = all && b.live == 0 && !b.offline && !b.leaving &&
            std::ranges::all_of(b.fences, [&](Ticket t) { return t <= last; });
    }
    count += any && all ? 1 : 0;
  }
  return count;
}

std::vector<PageHandle> NaivePages::cached() const {
  std::vector<PageHandle> found;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (!blocks_[i].cached) continue;
    found.push_back({BlockId(static_cast<std::int32_t>(i)), Generation(blocks_[i].generation)});
  }
  return found;
}

/// A page has one retention: the one that was set last for a block of it.
StatusCode NaivePages::set_retention(const PageHandle& handle, const RetentionHint& retention) {
  const Block& b = at(handle.id);
  if (b.generation != handle.generation.value) return StatusCode::stale_handle;
  if (b.content != BlockContent::published) return StatusCode::failed_precondition;
  order_.set_retention(key_of(page_of(handle.id)), retention);
  return StatusCode::ok;
}

}  // namespace kvarena::model
