#pragma once

/// @file
/// `EvictionOrder`: the order in which cached blocks are evicted, by one of four policies. It knows
/// block ids only: no contents, no references, no clock. Every call is O(1), without a scan and
/// without an allocation. Equal calls give equal orders. Move-only; one thread at a time.
///
/// The links of a block lie in arrays that are indexed by its id: 8 bytes a block, with LFU up
/// to 36. Memory is committed when it is first used.

#include "base/lazy_array.hpp"

#include "kvarena/base/ids.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvarena {

/// Which cached block is evicted first.
enum class EvictionPolicy : std::uint8_t {
  tail_first,  ///< the least recently used; of one sequence the last block first
  head_first,  ///< the least recently used; of one sequence the first block first
  fifo,        ///< the block that has been cached for the longest time
  lfu,         ///< the least often used; of equals the least recently used
};

inline constexpr std::array kEvictionPolicies{EvictionPolicy::tail_first,
                                              EvictionPolicy::head_first, EvictionPolicy::fifo,
                                              EvictionPolicy::lfu};

/// Returns "tail-first", "head-first", "fifo" or "lfu".
std::string_view name_of(EvictionPolicy policy) noexcept;
/// Returns the policy with this name, or nullopt.
std::optional<EvictionPolicy> eviction_policy_of(std::string_view name) noexcept;

/// Whether the blocks of a sequence are inserted and touched from the last to the first, which
/// leaves the first block the most recent. The caller of EvictionOrder follows it: the orders of
/// tail_first and head_first are alike in all else.
constexpr bool begins_at_tail(EvictionPolicy policy) noexcept {
  return policy == EvictionPolicy::tail_first;
}

/// The blocks that may be evicted, in order. It does not check its callers.
class EvictionOrder {
 public:
  /// Makes an empty order for blocks 0 .. num_blocks - 1. Requires 1 <= num_blocks <=
  /// KvLayout::kMaxBlocks. Throws std::bad_alloc.
  EvictionOrder(EvictionPolicy policy, std::int64_t num_blocks);

  EvictionPolicy policy() const noexcept { return policy_; }
  /// Returns the number of blocks in the order.
  std::int64_t size() const noexcept { return size_; }
  /// Returns the block to evict next, which stays in the order, or kNoBlock where there is none.
  BlockId next() const noexcept {
    const List& once = lists_[kOnce];
    return once.first != kNoBlock || once.higher == kNoList ? once.first
                                                            : lists_[once.higher].first;
  }

  /// Puts a block into the order. It counts as used once, now. Requires that it is not in the
  /// order.
  void insert(BlockId id) noexcept;
  /// Records that a block of the order is used again.
  void touch(BlockId id) noexcept;
  /// Takes a block out of the order and forgets how often it was used.
  void remove(BlockId id) noexcept;

  /// Whether the links agree with each other and with size(). O(size).
  bool is_whole() const noexcept;

 private:
  struct Links {
    BlockId earlier;
    BlockId later;
  };
  // Blocks that were used equally often, the least recently used first. Lists are linked by `uses`,
  // ascending. All policies but LFU have one list, because they do not count.
  struct List {
    BlockId first;
    BlockId last;
    std::uint32_t lower;
    std::uint32_t higher;
    std::int64_t uses;
  };
  static constexpr std::uint32_t kOnce = 0;  // the list of blocks that were used once, always there
  static constexpr std::uint32_t kNoList = 0;  // as `higher`: nothing is below kOnce

  static std::size_t index(BlockId id) noexcept { return static_cast<std::size_t>(id.value); }
  bool counts_uses() const noexcept { return policy_ == EvictionPolicy::lfu; }
  std::uint32_t list_of(BlockId id) const noexcept {
    return counts_uses() ? list_of_[index(id)] : kOnce;
  }
  void append(std::uint32_t list, BlockId id) noexcept;
  void unlink(std::uint32_t list, BlockId id) noexcept;
  void count_use(BlockId id) noexcept;
  std::uint32_t make_list_above(std::uint32_t list) noexcept;
  void drop_if_empty(std::uint32_t list) noexcept;

  EvictionPolicy policy_;
  std::int64_t size_ = 0;
  LazyArray<Links> links_;              // [num_blocks]
  LazyArray<std::uint32_t> list_of_;    // [num_blocks], with LFU alone
  LazyArray<List> lists_;               // [num_blocks + 1] with LFU, else [1]
  std::uint32_t lists_made_ = 1;        // how many elements of lists_ were ever used
  std::uint32_t spare_list_ = kNoList;  // dropped lists, linked by `higher`
};

}  // namespace kvarena
