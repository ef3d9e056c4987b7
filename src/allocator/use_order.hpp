#pragma once

/// @file
/// `UseOrder`: lfu. A list of blocks for each number of uses, and the set of the numbers whose list
/// has blocks. EvictionOrder says what the calls do.

#include "allocator/bit_tree.hpp"
#include "allocator/block_lists.hpp"
#include "kvarena/allocator/eviction_policy.hpp"

#include <cstdint>

namespace kvarena {

/// The order of EvictionPolicy::lfu. The note of a block is its number of uses; 0: not known.
class UseOrder {
 public:
  explicit UseOrder(std::int64_t num_blocks)
      : blocks_(kCounts, static_cast<std::size_t>(num_blocks)), counts_(kCounts) {}

  static constexpr std::int64_t bytes(std::int64_t num_blocks) noexcept {
    return BlockLists::bytes(kCounts, num_blocks) + static_cast<std::int64_t>(kCounts) / 8;
  }

  BlockId next() const noexcept {
    const std::size_t least = counts_.first();
    return least == BitTree::kNone ? kNoBlock : blocks_.front(least);
  }
  void insert(BlockId id) noexcept {
    std::uint32_t& uses = blocks_.note(id);
    if (uses == 0) uses = 1;
    if (blocks_.is_empty(uses)) counts_.insert(uses);
    blocks_.append(uses, id);
  }
  void hold(BlockId id) noexcept {
    const std::uint32_t uses = blocks_.note(id);
    blocks_.remove(uses, id);
    if (blocks_.is_empty(uses)) counts_.erase(uses);
  }
  void use(BlockId id) noexcept {
    std::uint32_t& uses = blocks_.note(id);
    if (uses < kMaxCountedUses) uses += uses == 0 ? 2 : 1;
  }
  void forget(BlockId id) noexcept { blocks_.note(id) = 0; }
  void begin_run(std::uint64_t) noexcept {}
  void end_run() noexcept {}

  bool is_whole(std::int64_t size) const {
    std::int64_t seen = 0;
    bool agrees = true;
    counts_.for_each([&](std::size_t uses) {
      const std::int64_t count = blocks_.count(
          uses, size, [&](BlockId id) { agrees = agrees && blocks_.note(id) == uses; });
      agrees = agrees && count > 0;
      seen += count;
    });
    return agrees && seen == size;
  }
  bool agrees(BlockId id) const noexcept {
    const std::uint32_t uses = blocks_.note(id);
    return uses != 0 && uses < kCounts && counts_.contains(uses) && blocks_.links_agree(uses, id);
  }

 private:
  static constexpr auto kCounts = static_cast<std::size_t>(kMaxCountedUses) + 1;

  BlockLists blocks_;
  BitTree counts_;
};

}  // namespace kvarena
