#pragma once

/// @file
/// `PriorityOrder`: priority. A list of evictable blocks for each priority, and a wheel that says
/// which retentions have expired. EvictionOrder says what the calls do.

#include "allocator/bit_tree.hpp"
#include "allocator/block_lists.hpp"
#include "allocator/expiry_wheel.hpp"
#include "base/lazy_array.hpp"
#include "kvarena/allocator/eviction_policy.hpp"

#include <cstdint>

namespace kvarena {

/// The order of EvictionPolicy::priority.
class PriorityOrder {
 public:
  explicit PriorityOrder(std::int64_t num_blocks)
      : blocks_(kPriorities, static_cast<std::size_t>(num_blocks)),
        used_(kPriorities),
        wheel_(num_blocks),
        hints_(static_cast<std::size_t>(num_blocks)) {}

  static constexpr std::int64_t bytes(std::int64_t num_blocks) noexcept {
    return BlockLists::bytes(kPriorities, num_blocks) + ExpiryWheel::bytes(num_blocks) +
           static_cast<std::int64_t>(sizeof(RetentionHint)) * num_blocks;
  }

  BlockId next() const noexcept {
    const std::size_t lowest = used_.first();
    return lowest == BitTree::kNone ? kNoBlock : blocks_.front(lowest);
  }
  void insert(BlockId id) noexcept {
    if (!has_hint(id)) return append(id, RetentionHint::kUsualPriority);
    const RetentionHint hint = retention(id);
    if (hint == RetentionHint{}) forget(id);
    append(id, hint.priority);
    if (hint.expires_at == RetentionHint::kNever) return;
    wheel_.insert(id, hint.expires_at);
    ++num_expiring_;
  }
  void hold(BlockId id) noexcept {
    unlink(id);
    if (!has_hint(id) || hints_[index(id)].expires_at == RetentionHint::kNever) return;
    wheel_.remove(id);
    --num_expiring_;
  }
  void use(BlockId) noexcept {}
  void forget(BlockId id) noexcept { blocks_.note(id) = 0; }
  void begin_run(std::uint64_t) noexcept {}
  void end_run() noexcept {}
  /// Sets what a block's retention is from now on. Requires that the block is not in the order.
  void set_retention(BlockId id, const RetentionHint& hint) noexcept {
    hints_[index(id)] = hint;
    blocks_.note(id) = hint.expires_at > wheel_.now() && hint != RetentionHint{} ? kHinted : 0;
  }
  /// Returns what set_retention said, until it expires.
  RetentionHint retention(BlockId id) const noexcept {
    const RetentionHint& hint = hints_[index(id)];
    return has_hint(id) && hint.expires_at > wheel_.now() ? hint : RetentionHint{};
  }
  std::int64_t now() const noexcept { return wheel_.now(); }
  void advance_clock(std::int64_t now) noexcept {
    wheel_.advance(now, [this](BlockId id) {
      --num_expiring_;
      unlink(id);
      forget(id);
      append(id, RetentionHint::kUsualPriority);
    });
  }

  bool is_whole(std::int64_t size) const {
    std::int64_t seen = 0;
    bool agrees = true;
    used_.for_each([&](std::size_t priority) {
      const std::int64_t count = blocks_.count(
          priority, size, [&](BlockId id) { agrees = agrees && list_of(id) == priority; });
      agrees = agrees && count > 0;
      seen += count;
    });
    return agrees && seen == size && wheel_.is_whole(num_expiring_);
  }
  bool agrees(BlockId id) const noexcept {
    const std::size_t priority = list_of(id);
    return priority < kPriorities && used_.contains(priority) && blocks_.links_agree(priority, id);
  }

 private:
  static constexpr std::size_t kPriorities = std::size_t{RetentionHint::kMaxPriority} + 1;

  // A block's note: its present priority, when it is in the order, and whether hints_ has its hint.
  static constexpr std::uint32_t kHinted = 1U << 8;
  static constexpr std::uint32_t kPresent = kHinted - 1;

  static std::size_t index(BlockId id) noexcept { return static_cast<std::size_t>(id.value); }
  bool has_hint(BlockId id) const noexcept { return (blocks_.note(id) & kHinted) != 0; }
  std::size_t list_of(BlockId id) const noexcept { return blocks_.note(id) & kPresent; }
  void append(BlockId id, std::int32_t priority) noexcept {
    const auto list = static_cast<std::size_t>(priority);
    blocks_.note(id) = (blocks_.note(id) & kHinted) | static_cast<std::uint32_t>(priority);
    if (blocks_.is_empty(list)) used_.insert(list);
    blocks_.append(list, id);
  }
  void unlink(BlockId id) noexcept {
    const std::size_t list = list_of(id);
    blocks_.remove(list, id);
    if (blocks_.is_empty(list)) used_.erase(list);
  }

  BlockLists blocks_;
  BitTree used_;
  ExpiryWheel wheel_;
  LazyArray<RetentionHint> hints_;  // [num_blocks]
  std::int64_t num_expiring_ = 0;
};

}  // namespace kvarena
