#pragma once

/// @file
/// The inline functions of BlockPool: what the word of a block says, and how a block enters and
/// leaves the evictable order. Only block_pool.hpp includes this file.

#include "allocator/block_pool.hpp"

namespace kvarena {

/// Reads a block's state from its word.
inline BlockState BlockPool::state(BlockId id) const noexcept {
  const std::uint32_t word = record(id).word;
  if ((word & kHeld) != 0)
    return (word & kCount) != 0 ? BlockState::referenced : BlockState::fenced;
  if ((word & kQuarantined) != 0) return BlockState::offline;
  if (pages_ == nullptr) {
    return (word & kPublished) != 0 ? BlockState::evictable : BlockState::free;
  }
  if (word == kPublished) return BlockState::evictable;
  return pages_->is_carved(pages_->place_of(id)) ? BlockState::free : BlockState::absent;
}

inline BlockContent BlockPool::content(BlockId id) const noexcept {
  const std::uint32_t word = record(id).word;
  if ((word & kHeld) == 0) {
    return state(id) == BlockState::evictable ? BlockContent::published : BlockContent::unwritten;
  }
  switch (word & kContent) {
    case kPublished: return BlockContent::published;
    case kWriting: return BlockContent::being_written;
    case kContent: return BlockContent::failed;
    default: return BlockContent::unwritten;
  }
}

inline void BlockPool::set_content(BlockId id, BlockContent content) noexcept {
  std::uint32_t marks = 0;
  switch (content) {
    case BlockContent::unwritten: break;
    case BlockContent::being_written: marks = kWriting; break;
    case BlockContent::published: marks = kPublished; break;
    case BlockContent::failed: marks = kContent; break;
  }
  if (content != BlockContent::published) forget(id);
  record(id).word = (record(id).word & ~kContent) | marks;
}

/// Makes a block the last one to be evicted.
inline void BlockPool::append_evictable(BlockId id) noexcept {
  ++counts_.evictable;
  if (order_ != nullptr) {
    record(id).word = kPublished;
    return order_->insert(id);
  }
  record(id).word = kPublished | kLink;
  side_[index(id)] = evictable_tail_;
  const auto raw = static_cast<std::uint32_t>(id.value);
  if (evictable_tail_ == kLink) {
    evictable_head_ = raw;
  } else {
    records_[evictable_tail_].word = kPublished | raw;
  }
  evictable_tail_ = raw;
}

/// The links of the neighbours, or the ends of the list, skip the block.
inline void BlockPool::unlink_evictable(BlockId id) noexcept {
  --counts_.evictable;
  if (order_ != nullptr) {
    record(id).word = 0;
    return order_->hold(id);
  }
  const std::uint32_t next = record(id).word & kLink;
  const std::uint32_t previous = side_[index(id)];
  (previous == kLink ? evictable_head_ : records_[previous].word) =
      previous == kLink ? next : (kPublished | next);
  (next == kLink ? evictable_tail_ : side_[next]) = previous;
  side_[index(id)] = kNoFence;
  record(id).word = 0;
}

}  // namespace kvarena
