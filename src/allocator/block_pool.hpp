#pragma once

/// @file
/// `BlockPool`: the frequently used arrays of a BlockManager. They have the state of each block,
/// its reference count and generation, the free list and the evictable order. The pool does not
/// check its callers; the manager does. It takes 16 bytes a block: an 8-byte record, a 4-byte link
/// and a 4-byte place on the free stack.
///
/// With a policy other than tail_first an EvictionOrder has the order of evictable blocks in place
/// of the links. With groups a PagePool has the orders of free and evictable blocks in place of the
/// free stack and the links. A block whose page is not carved for its group is absent.

#include "allocator/eviction_order.hpp"
#include "allocator/page_pool.hpp"
#include "kvarena/allocator/accounts.hpp"
#include "kvarena/base/ids.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace kvarena {

/// Numbers of blocks by state. Every transition updates them.
struct StateCounts {
  std::int64_t free = 0;
  std::int64_t referenced = 0;
  std::int64_t fenced = 0;
  std::int64_t evictable = 0;
  std::int64_t offline = 0;
  friend bool operator==(const StateCounts&, const StateCounts&) = default;
};

/// States, counts and orders of all blocks.
class BlockPool {
 public:
  // The word of a block. The word of a held block has kHeld, kQuarantined when it is quarantined,
  // the state of its content, and the number of live (not fenced) references in the low bits; zero
  // live references means fenced. Of the content bits, kPublished alone means published, kWriting
  // alone means being written, and both mean failed. A block that is not held is offline with
  // kQuarantined, evictable with kPublished, and free otherwise. An evictable word has the next
  // link in the bits below kQuarantined, unless an EvictionOrder or a page has it. Offline and free
  // words remember their content, for undo_drop alone; in a free word kFailedFree stands for
  // kPublished.
  static constexpr std::uint32_t kHeld = 1U << 31;
  static constexpr std::uint32_t kPublished = 1U << 30;
  static constexpr std::uint32_t kQuarantined = 1U << 29;
  static constexpr std::uint32_t kWriting = 1U << 28;
  static constexpr std::uint32_t kContent = kPublished | kWriting;
  static constexpr std::uint32_t kCount = kWriting - 1;     ///< of references
  static constexpr std::uint32_t kLink = kQuarantined - 1;  ///< to a block; all bits set: no block
  static constexpr std::uint32_t kFailedFree = 1;
  static constexpr std::uint32_t kNoFence = ~0U;  ///< side word of a held block without fence
                                                  ///< entries

  struct Record {
    std::uint32_t word = 0;
    std::uint32_t generation = 0;
  };
  static_assert(sizeof(Record) + 2 * sizeof(std::uint32_t) <= 16);

  BlockPool(std::int64_t num_blocks, EvictionPolicy policy);
  /// Makes a pool of pages for these groups, of which there is at least one.
  BlockPool(std::int64_t num_pages, std::span<const BlockGroup> groups, std::int64_t max_holders,
            EvictionPolicy policy);
  // The pages know the place of the counts.
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// The pages of a pool with groups, else nullptr.
  PagePool* pages() noexcept { return pages_.get(); }
  const PagePool* pages() const noexcept { return pages_.get(); }

  /// The order of evictable blocks, with groups of idle pages; nullptr when it is in the links or
  /// the pages.
  EvictionOrder* order() noexcept { return pages_ == nullptr ? order_.get() : pages_->order(); }
  const EvictionOrder* order() const noexcept {
    return pages_ == nullptr ? order_.get() : std::as_const(*pages_).order();
  }
  /// What the order calls a block: its id, with groups its page.
  BlockId key_of(BlockId id) const noexcept {
    return pages_ == nullptr ? id : BlockId(pages_->place_of(id).page);
  }
  /// Whether the order has a block, with groups its page.
  bool is_in_order(BlockId id) const noexcept {
    if (pages_ == nullptr) return state(id) == BlockState::evictable;
    return pages_->page(pages_->place_of(id).page).queue == PageQueue::idle;
  }

  std::int64_t num_blocks() const noexcept { return static_cast<std::int64_t>(records_.size()); }
  const StateCounts& counts() const noexcept { return counts_; }
  bool contains(BlockId id) const noexcept {
    return static_cast<std::uint32_t>(id.value) < records_.size();
  }
  Record& record(BlockId id) noexcept { return records_[index(id)]; }
  const Record& record(BlockId id) const noexcept { return records_[index(id)]; }
  /// The head of a held block's chain of fence entries.
  std::uint32_t& fence_head(BlockId id) noexcept { return side_[index(id)]; }
  std::uint32_t fence_head(BlockId id) const noexcept { return side_[index(id)]; }

  BlockState state(BlockId id) const noexcept;
  std::uint32_t live_references(BlockId id) const noexcept {
    const std::uint32_t word = record(id).word;
    return (word & kHeld) != 0 ? word & kCount : 0;
  }
  BlockContent content(BlockId id) const noexcept;
  /// Sets what is known of a block's content. Requires a held block.
  void set_content(BlockId id, BlockContent content) noexcept;

  /// Hands out `count` blocks with one reference each: first free blocks, then evictable ones.
  /// Returns the number of evictable ones. Requires count <= free + evictable.
  std::int64_t take(BlockId* ids, Generation* generations, std::int64_t count) noexcept;
  /// Returns how many leading handles of a list can be retained `references` times as they are: a
  /// block that is evictable, or has a live reference. Adds the evictable ones to `revived`.
  std::size_t count_retainable(std::span<const BlockId> ids,
                               std::span<const Generation> generations, std::size_t references,
                               std::int64_t& revived) const noexcept;
  /// Takes one more reference on each block of a list, which are held or evictable. Returns how
  /// many were evictable. Without groups.
  std::int64_t retain(std::span<const BlockId> ids) noexcept;
  /// Gives up one reference on each leading block of a list while the case is simple: the block
  /// keeps another live reference, or becomes free or evictable. It stops at the last reference of
  /// a block with fence entries or marks other than published, and at a handle that is not live.
  /// Returns the number of references given up.
  std::size_t release_leading(std::span<const BlockId> ids, std::span<const Generation> generations,
                              bool any_fenced) noexcept;
  /// Ends a held block whose last reference, live or fenced, is going: it becomes free, evictable
  /// or offline. The caller has updated the count of the state that it leaves.
  void drop(BlockId id) noexcept {
    if (pages_ != nullptr) return drop_in_page(id);
    Record& r = record(id);
    if ((r.word & (kContent | kQuarantined)) != 0) return drop_marked(id);
    r.word = 0;
    ++r.generation;
    free_stack_[static_cast<std::size_t>(counts_.free++)] = id;
  }
  /// Undoes the newest `drop` that is not undone yet. The block has one live reference again.
  void undo_drop(BlockId id) noexcept;
  /// Takes an evictable block out of its order, which remembers it until it is forgotten. The block
  /// then has no references and is in no list.
  void unlink_evictable(BlockId id) noexcept;
  /// Ends what an order knows of a block that is not evictable: nobody finds its content any more.
  void forget(BlockId id) noexcept {
    if (order_ != nullptr) order_->forget(id);
  }
  /// Counts a use of a block that was found by its content.
  void count_use(BlockId id) noexcept {
    if (order_ != nullptr && content(id) == BlockContent::published) order_->use(id);
  }
  /// The blocks that the last `take` evicted, of which there were `count`, in the order of
  /// eviction. Valid until the next `take`, or release of one of them.
  std::span<const BlockId> last_evicted(std::size_t count) const noexcept {
    return std::span(free_stack_).last(count);
  }
  /// Drops the cached content of an evictable block, which becomes free.
  void free_evictable(BlockId id) noexcept;
  /// Takes a free or evictable block offline. O(n) for a free block.
  void take_offline(BlockId id) noexcept;
  /// Makes an offline block free.
  void bring_online(BlockId id) noexcept;

  // ---- with groups
  /// Gives a block that is not held, and that its page has just taken, to a holder. Returns its
  /// generation.
  Generation hand_out(BlockId id) noexcept {
    Record& r = record(id);
    r.word = kHeld | 1;
    return Generation(r.generation);
  }
  /// Prepares the cache for hand_out.
  void prefetch(BlockId id) const noexcept { __builtin_prefetch(&records_[index(id)], 1); }
  void prefetch_fence(BlockId id) const noexcept { __builtin_prefetch(&side_[index(id)]); }
  /// Ends the cached content of a block that its page has just taken or lost.
  void evict(BlockId id) noexcept {
    record(id).word = 0;
    ++record(id).generation;
  }
  /// Ends a held block without references that is not quarantined. Returns whether its content
  /// stays cached. Its page does not know yet.
  bool end_held(BlockId id) noexcept {
    Record& r = record(id);
    if ((r.word & kContent) == kPublished) {
      r.word = kPublished;
      return true;
    }
    evict(id);
    return false;
  }
  /// A block is fenced (1), or is not any more (-1).
  void count_fenced(BlockId id, std::int64_t change) noexcept {
    counts_.fenced += change;
    if (pages_ != nullptr) pages_->count_fenced(pages_->place_of(id).group, change);
  }

  StateCounts& mutable_counts() noexcept { return counts_; }

  /// Counts the states again from the records alone. O(n).
  StateCounts recount() const noexcept;
  /// Whether a block's page is offline, so that no group counts it.
  bool is_of_page_out_of_service(BlockId id) const noexcept {
    return pages_ != nullptr &&
           pages_->page(pages_->place_of(id).page).queue == PagePool::Queue::offline;
  }
  /// Whether the free stack names each free block once. O(n).
  bool free_list_is_whole() const;
  /// Whether the evictable list is whole. O(evictable).
  bool evictable_list_is_whole() const;
  /// Whether this place of the free stack names a free block. Requires 0 <= place < num_blocks().
  bool names_free_block(std::int64_t place) const noexcept {
    const BlockId id = free_stack_[static_cast<std::size_t>(place)];
    return contains(id) && state(id) == BlockState::free;
  }
  /// Whether the neighbours of an evictable block in the order also link to it. O(1).
  bool evictable_links_agree(BlockId id) const noexcept;
  /// The sum of all live references. O(n).
  std::int64_t total_live_references() const noexcept;

 private:
  // Records lie in random order after a while, so they are prefetched this many blocks ahead.
  static constexpr std::int64_t kPrefetchDistance = 16;

  static std::size_t index(BlockId id) noexcept { return static_cast<std::size_t>(id.value); }
  static BlockId block(std::uint32_t raw) noexcept {
    return BlockId(static_cast<std::int32_t>(raw));
  }
  void drop_marked(BlockId id) noexcept;
  void drop_in_page(BlockId id) noexcept;
  void append_evictable(BlockId id) noexcept;
  void evict(BlockId* ids, Generation* generations, std::int64_t count) noexcept;

  std::vector<Record> records_;
  std::vector<std::uint32_t> side_;  // held: fence chain; evictable: previous link; else kNoFence
  std::vector<BlockId> free_stack_;  // [0, counts_.free) are the free blocks; the last one is
                                     // handed out next. Behind them are the blocks that the last
                                     // allocation evicted
  std::uint32_t evictable_head_ = kLink;  // the block to evict next
  std::uint32_t evictable_tail_ = kLink;
  StateCounts counts_;
  std::unique_ptr<EvictionOrder> order_;
  std::unique_ptr<PagePool> pages_;
};

}  // namespace kvarena

#include "allocator/block_pool_states.hpp"
