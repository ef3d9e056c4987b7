#pragma once

/// @file
/// `EntryOrder`: fifo. The blocks in the order in which they first became evictable. A block that
/// is held keeps its place in the queue. When its turn comes it is passed over: it leaves the
/// queue, and goes to the overdue blocks when it is evictable again. So a block is passed over once
/// for each time that it is held, and an eviction is O(1), amortised. EvictionOrder says what the
/// calls do.

#include "allocator/block_lists.hpp"

#include <cstdint>

namespace kvarena {

/// The order of EvictionPolicy::fifo.
class EntryOrder {
 public:
  explicit EntryOrder(std::int64_t num_blocks) : blocks_(2, static_cast<std::size_t>(num_blocks)) {}

  static constexpr std::int64_t bytes(std::int64_t num_blocks) noexcept {
    return BlockLists::bytes(2, num_blocks);
  }

  BlockId next() noexcept {
    if (!blocks_.is_empty(kOverdue)) return blocks_.front(kOverdue);
    for (;;) {
      const BlockId first = blocks_.front(kQueue);
      if (first == kNoBlock || blocks_.note(first) == kWaiting) return first;
      blocks_.remove(kQueue, first);
      blocks_.note(first) = kPassed;
    }
  }
  void insert(BlockId id) noexcept {
    std::uint32_t& place = blocks_.note(id);
    switch (place) {
      case kUnknown: blocks_.append(kQueue, id); [[fallthrough]];
      case kHeld: place = kWaiting; return;
      default: blocks_.append(kOverdue, id); place = kLate;
    }
  }
  void hold(BlockId id) noexcept {
    std::uint32_t& place = blocks_.note(id);
    if (place == kLate) blocks_.remove(kOverdue, id);
    place = place == kLate ? kPassed : kHeld;
  }
  void use(BlockId) noexcept {}
  void forget(BlockId id) noexcept {
    if (blocks_.note(id) == kHeld) blocks_.remove(kQueue, id);
    blocks_.note(id) = kUnknown;
  }
  void begin_run(std::uint64_t) noexcept {}
  void end_run() noexcept {}

  /// Held blocks are in the queue too. O(blocks in the queue).
  bool is_whole(std::int64_t size) const {
    std::int64_t evictable = 0;
    bool agrees = true;
    const auto at_most = static_cast<std::int64_t>(blocks_.num_blocks());
    const std::int64_t queued = blocks_.count(kQueue, at_most, [&](BlockId id) {
      evictable += blocks_.note(id) == kWaiting ? 1 : 0;
      agrees = agrees && (blocks_.note(id) == kWaiting || blocks_.note(id) == kHeld);
    });
    const std::int64_t overdue = blocks_.count(
        kOverdue, size, [&](BlockId id) { agrees = agrees && blocks_.note(id) == kLate; });
    return agrees && queued >= 0 && overdue >= 0 && evictable + overdue == size;
  }
  bool agrees(BlockId id) const noexcept {
    const std::uint32_t place = blocks_.note(id);
    if (place != kWaiting && place != kLate) return false;
    return blocks_.links_agree(place == kLate ? kOverdue : kQueue, id);
  }

 private:
  static constexpr std::size_t kQueue = 0;
  static constexpr std::size_t kOverdue = 1;
  // The note of a block: what the order knows of it.
  static constexpr std::uint32_t kUnknown = 0;
  static constexpr std::uint32_t kWaiting = 1;  // in the queue
  static constexpr std::uint32_t kHeld = 2;     // in the queue, and not evictable now
  static constexpr std::uint32_t kPassed = 3;   // in no list, and not evictable now
  static constexpr std::uint32_t kLate = 4;     // overdue

  BlockLists blocks_;
};

}  // namespace kvarena
