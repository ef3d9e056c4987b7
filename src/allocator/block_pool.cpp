#include "allocator/block_pool.hpp"

#include <algorithm>

namespace kvarena {

/// The free stack is filled in reverse, so that blocks 0, 1, 2, ... are handed out first.
BlockPool::BlockPool(std::int64_t num_blocks, EvictionPolicy policy)
    : records_(static_cast<std::size_t>(num_blocks)),
      side_(static_cast<std::size_t>(num_blocks), kNoFence),
      free_stack_(static_cast<std::size_t>(num_blocks)) {
  for (std::size_t i = 0; i < free_stack_.size(); ++i) {
    free_stack_[i] = BlockId(static_cast<std::int32_t>(free_stack_.size() - 1 - i));
  }
  counts_.free = num_blocks;
  if (policy != EvictionPolicy::tail_first) {
    order_ = std::make_unique<EvictionOrder>(policy, num_blocks);
  }
}

/// The free stack stays empty: all pages are free, so all blocks are absent.
BlockPool::BlockPool(std::int64_t num_pages, std::span<const BlockGroup> groups,
                     std::int64_t max_holders, EvictionPolicy policy)
    : records_(static_cast<std::size_t>(num_pages * PagePool::ids_per_page(groups))),
      side_(records_.size(), kNoFence),
      pages_(std::make_unique<PagePool>(num_pages, groups, max_holders, policy, counts_)) {}

/// A free block keeps its generation, which rose when it became free. An evicted one gets the next.
std::int64_t BlockPool::take(BlockId* ids, Generation* generations, std::int64_t count) noexcept {
  const std::int64_t from_free = std::min(count, counts_.free);
  const BlockId* top = free_stack_.data() + counts_.free - 1;
  for (std::int64_t i = 0; i < from_free; ++i) {
    if (counts_.free - i > kPrefetchDistance) {
      __builtin_prefetch(&records_[index(top[-kPrefetchDistance])], 1);
    }
    const BlockId id = *top--;
    Record& r = records_[index(id)];
    r.word = kHeld | 1;
    ids[i] = id;
    generations[i] = Generation(r.generation);
  }
  counts_.free -= from_free;
  evict(ids + from_free, generations + from_free, count - from_free);
  counts_.referenced += count;
  return count - from_free;
}

/// Hands out evictable blocks, from the head of the list. Their list is at the end of the free
/// stack's memory, which free blocks cannot need while these are held.
void BlockPool::evict(BlockId* ids, Generation* generations, std::int64_t count) noexcept {
  BlockId* evicted = free_stack_.data() + (std::ssize(free_stack_) - count);
  const auto hand_out_evicted = [&](BlockId id) {
    Record& r = record(id);
    r.word = kHeld | 1;
    *ids++ = id;
    *generations++ = Generation(++r.generation);
    *evicted++ = id;
  };
  if (order_ != nullptr) {
    counts_.evictable -= count;
    return order_->evict(count, hand_out_evicted);
  }
  counts_.evictable -= count;
  std::uint32_t raw = evictable_head_;
  for (std::int64_t i = 0; i < count; ++i) {
    const BlockId id = block(raw);
    raw = record(id).word & kLink;
    side_[index(id)] = kNoFence;
    hand_out_evicted(id);
  }
  evictable_head_ = raw;
  (raw == kLink ? evictable_tail_ : side_[raw]) = kLink;
}

/// Ends a held block that is quarantined or whose content is marked.
void BlockPool::drop_marked(BlockId id) noexcept {
  Record& r = record(id);
  if ((r.word & kQuarantined) != 0) {
    forget(id);
    r.word &= kQuarantined | kContent;
    ++r.generation;
    ++counts_.offline;
  } else if ((r.word & kContent) == kPublished) {
    append_evictable(id);
  } else {
    r.word = kWriting | ((r.word & kPublished) != 0 ? kFailedFree : 0);
    ++r.generation;
    free_stack_[static_cast<std::size_t>(counts_.free++)] = id;
  }
}

void BlockPool::drop_in_page(BlockId id) noexcept {
  const BlockPlace place = pages_->place_of(id);
  if ((record(id).word & kQuarantined) != 0) {
    record(id).word = kQuarantined;
    ++record(id).generation;
    return pages_->take_offline(place);
  }
  PagePool::Returned returned;
  returned.add(place.slot, end_held(id));
  pages_->give_back(static_cast<std::uint32_t>(place.page), returned);
}

/// Each state remembers enough of the content to restore the word of the held block.
void BlockPool::undo_drop(BlockId id) noexcept {
  Record& r = record(id);
  switch (state(id)) {
    case BlockState::free:
      --counts_.free;  // the newest free block is on top of the stack
      --r.generation;
      r.word = kHeld | (r.word & kWriting) | ((r.word & kFailedFree) != 0 ? kPublished : 0) | 1;
      break;
    case BlockState::evictable:
      unlink_evictable(id);
      r.word = kHeld | kPublished | 1;
      break;
    case BlockState::offline:
      --counts_.offline;
      --r.generation;
      r.word = kHeld | (r.word & (kContent | kQuarantined)) | 1;
      break;
    case BlockState::referenced:
    case BlockState::fenced:
    case BlockState::absent: break;
  }
}

void BlockPool::free_evictable(BlockId id) noexcept {
  if (pages_ != nullptr) {
    evict(id);
    return pages_->forget_cached(pages_->place_of(id));
  }
  unlink_evictable(id);
  forget(id);
  ++record(id).generation;
  free_stack_[static_cast<std::size_t>(counts_.free++)] = id;
}

void BlockPool::take_offline(BlockId id) noexcept {
  if (pages_ != nullptr) {
    record(id).word = kQuarantined;
    ++record(id).generation;
    return pages_->take_offline(pages_->place_of(id));
  }
  if (state(id) == BlockState::evictable) {
    unlink_evictable(id);
    forget(id);
  } else {
    const auto end = free_stack_.begin() + counts_.free;
    const auto found = std::find(free_stack_.begin(), end, id);
    std::copy(found + 1, end, found);
    --counts_.free;
  }
  record(id).word = kQuarantined;
  ++record(id).generation;
  ++counts_.offline;
}

void BlockPool::bring_online(BlockId id) noexcept {
  record(id).word = 0;
  if (pages_ != nullptr) return pages_->bring_online(pages_->place_of(id));
  --counts_.offline;
  free_stack_[static_cast<std::size_t>(counts_.free++)] = id;
}

StateCounts BlockPool::recount() const noexcept {
  StateCounts counts;
  for (std::int64_t i = 0; i < num_blocks(); ++i) {
    if (is_of_page_out_of_service(BlockId(static_cast<std::int32_t>(i)))) continue;
    switch (state(BlockId(static_cast<std::int32_t>(i)))) {
      case BlockState::free: ++counts.free; break;
      case BlockState::referenced: ++counts.referenced; break;
      case BlockState::fenced: ++counts.fenced; break;
      case BlockState::evictable: ++counts.evictable; break;
      case BlockState::offline: ++counts.offline; break;
      case BlockState::absent: break;
    }
  }
  return counts;
}

bool BlockPool::free_list_is_whole() const {
  std::vector<bool> seen(records_.size());
  for (std::int64_t i = 0; i < counts_.free; ++i) {
    const BlockId id = free_stack_[static_cast<std::size_t>(i)];
    if (!contains(id) || state(id) != BlockState::free || seen[index(id)]) return false;
    seen[index(id)] = true;
  }
  return true;  // together with the recount, the list has exactly the free blocks
}

bool BlockPool::evictable_list_is_whole() const {
  if (order_ != nullptr) return order_->size() == counts_.evictable && order_->is_whole();
  std::int64_t length = 0;
  std::uint32_t previous = kLink;
  for (std::uint32_t raw = evictable_head_; raw != kLink; raw = records_[raw].word & kLink) {
    if (raw >= records_.size() || ++length > counts_.evictable) return false;
    if ((records_[raw].word & ~kLink) != kPublished || side_[raw] != previous) return false;
    previous = raw;
  }
  return length == counts_.evictable && evictable_tail_ == previous;
}

bool BlockPool::evictable_links_agree(BlockId id) const noexcept {
  if (order_ != nullptr) return order_->agrees(id);
  const auto raw = static_cast<std::uint32_t>(id.value);
  const auto is_evictable = [this](std::uint32_t other) {
    return other < records_.size() && (records_[other].word & ~kLink) == kPublished;
  };
  const std::uint32_t next = record(id).word & kLink;
  const std::uint32_t previous = side_[raw];
  const bool next_agrees =
      next == kLink ? evictable_tail_ == raw : is_evictable(next) && side_[next] == raw;
  const bool previous_agrees =
      previous == kLink ? evictable_head_ == raw
                        : is_evictable(previous) && (records_[previous].word & kLink) == raw;
  return next_agrees && previous_agrees;
}

std::int64_t BlockPool::total_live_references() const noexcept {
  std::int64_t total = 0;
  for (const Record& r : records_) {
    if ((r.word & kHeld) != 0) total += r.word & kCount;
  }
  return total;
}

}  // namespace kvarena
