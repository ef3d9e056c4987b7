#pragma once

/// @file
/// `EvictionOrder`: the order in which cached blocks are evicted, by a policy. It knows block ids
/// only: no contents, no references. Every call is O(1), for fifo's next and advance_clock
/// amortised, without an allocation. Equal calls give equal orders. Move-only; one thread at a
/// time.
///
/// A block is in the order while it is evictable. A block that is held leaves the order, but the
/// order remembers what its policy needs (since when it is cached, how often it was used, its
/// retention) until it is forgotten.
///
/// What is known of a block lies in arrays that are indexed by its id: 12 bytes a block, with
/// priority 48. Memory is committed when it is first used.

#include "allocator/entry_order.hpp"
#include "allocator/priority_order.hpp"
#include "allocator/recency_order.hpp"
#include "allocator/use_order.hpp"
#include "kvarena/allocator/eviction_policy.hpp"
#include "kvarena/base/ids.hpp"

#include <cstdint>
#include <variant>

namespace kvarena {

/// Whether the blocks of a sequence are inserted and touched from the last to the first, which
/// leaves the first block the most recent. The caller of EvictionOrder follows it: without runs the
/// orders of tail_first and head_first are alike in all else.
constexpr bool begins_at_tail(EvictionPolicy policy) noexcept {
  return policy == EvictionPolicy::tail_first;
}

/// The blocks that may be evicted, in order. It does not check its callers.
class EvictionOrder {
 public:
  /// Makes an empty order for blocks 0 .. num_blocks - 1. Requires 1 <= num_blocks <=
  /// KvLayout::kMaxBlocks. Throws std::bad_alloc.
  EvictionOrder(EvictionPolicy policy, std::int64_t num_blocks);
  /// Returns the bytes of such an order.
  static std::int64_t bytes(EvictionPolicy policy, std::int64_t num_blocks) noexcept;

  EvictionPolicy policy() const noexcept { return policy_; }
  /// Returns the number of blocks in the order.
  std::int64_t size() const noexcept { return size_; }
  /// Returns the block to evict next, which stays in the order, or kNoBlock where there is none.
  BlockId next() noexcept {
    return std::visit([](auto& order) { return order.next(); }, order_);
  }

  /// Puts a block into the order: for the first time, or again after it was held. Requires that it
  /// is not in the order.
  void insert(BlockId id) noexcept {
    std::visit([id](auto& order) { order.insert(id); }, order_);
    ++size_;
  }
  /// Takes a block out of the order, and remembers it.
  void hold(BlockId id) noexcept {
    std::visit([id](auto& order) { order.hold(id); }, order_);
    --size_;
  }
  /// Counts a use of a block that is not in the order.
  void use(BlockId id) noexcept {
    std::visit([id](auto& order) { order.use(id); }, order_);
  }
  /// Forgets a block that is not in the order.
  void forget(BlockId id) noexcept {
    std::visit([id](auto& order) { order.forget(id); }, order_);
  }
  /// Takes a block out of the order and forgets it.
  void remove(BlockId id) noexcept {
    hold(id);
    forget(id);
  }
  /// Takes the next `count` blocks out of the order, forgets them, and calls evicted(id) for each.
  /// Requires count <= size().
  template <class Evicted>
  void evict(std::int64_t count, Evicted evicted) noexcept {
    size_ -= count;
    std::visit(
        [&](auto& order) {
          for (std::int64_t i = 0; i < count; ++i) {
            const BlockId id = order.next();
            order.hold(id);
            order.forget(id);
            evicted(id);
          }
        },
        order_);
  }
  /// Records that a block of the order is used again, now: hold, use, insert.
  void touch(BlockId id) noexcept {
    hold(id);
    use(id);
    insert(id);
  }
  /// The blocks that are inserted from now on belong to this run; 0: to none. A run goes on while
  /// nothing else changes the order. See EvictionPolicy::head_first.
  void begin_run(std::uint64_t run) noexcept {
    std::visit([run](auto& order) { order.begin_run(run); }, order_);
  }
  /// Ends the run: the next block begins one, whatever its number is.
  void end_run() noexcept {
    std::visit([](auto& order) { order.end_run(); }, order_);
  }

  /// The retentions and their clock; null without EvictionPolicy::priority.
  PriorityOrder* retentions() noexcept { return std::get_if<PriorityOrder>(&order_); }
  const PriorityOrder* retentions() const noexcept { return std::get_if<PriorityOrder>(&order_); }

  /// Whether the links agree with each other and with size(). O(num_blocks).
  bool is_whole() const;
  /// Whether the neighbours of a block of the order name it.
  bool agrees(BlockId id) const noexcept {
    return std::visit([id](const auto& order) { return order.agrees(id); }, order_);
  }

 private:
  using Order = std::variant<RecencyOrder, EntryOrder, UseOrder, PriorityOrder>;
  static Order order_of(EvictionPolicy policy, std::int64_t num_blocks);

  EvictionPolicy policy_;
  std::int64_t size_ = 0;
  Order order_;
};

}  // namespace kvarena
