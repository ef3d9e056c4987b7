#pragma once

/// @file
/// `PagePool`: the pages of a pool whose blocks belong to several groups, and the orders behind
/// allocation (the public header has them). For each page it keeps which slots are free and which
/// are evictable, and how many; all other slots of a carved page are held or offline. After each
/// change `settle` moves the page to the lists that its slots call for. It does not check its
/// callers; the manager does. Words, generations and references of blocks are in BlockPool. 64
/// bytes a page. All calls are O(1), unless they say otherwise.

#include "allocator/eviction_order.hpp"
#include "allocator/page.hpp"
#include "kvarena/allocator/page_pool.hpp"
#include "kvarena/base/ids.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena {

struct StateCounts;

/// Pages, their lists and counts.
class PagePool {
 public:
  using Slots = PageSlots;
  using Page = PooledPage;
  using Queue = PageQueue;
  using Returned = ReturnedSlots;
  static constexpr std::uint32_t kNone = kNoPage;

  /// A block that a call takes from somebody else's page.
  struct Found {
    std::uint32_t page;
    std::int32_t slot;
  };

  /// Makes the tables. `totals` gets the sums of free, evictable and offline blocks of all groups.
  PagePool(std::int64_t num_pages, std::span<const BlockGroup> groups, std::int64_t max_holders,
           EvictionPolicy policy, StateCounts& totals);
  /// Returns the bytes of such tables.
  static std::int64_t bytes(std::int64_t num_pages, std::size_t num_groups,
                            std::int64_t max_holders, EvictionPolicy policy) noexcept;
  /// The sum of blocks_per_page: the ids of a page.
  static std::int64_t ids_per_page(std::span<const BlockGroup> groups) noexcept;

  std::int64_t num_pages() const noexcept { return static_cast<std::int64_t>(pages_.size()); }
  std::span<const BlockGroup> groups() const noexcept { return groups_; }
  std::size_t num_groups() const noexcept { return groups_.size(); }
  std::int32_t blocks_per_page(std::int32_t group) const noexcept {
    return books_[index(group)].blocks_per_page;
  }
  std::int64_t block_bytes(std::int32_t group) const noexcept {
    return groups_[index(group)].block_bytes;
  }

  BlockPlace place_of(BlockId id) const noexcept {
    const auto raw = static_cast<std::uint64_t>(static_cast<std::uint32_t>(id.value));
    const std::uint64_t page = raw * reciprocal_ >> shift_;
    const Slot slot = slots_[raw - page * slots_.size()];
    return {static_cast<std::int32_t>(page), slot.group, slot.slot};
  }
  BlockId id_of(std::uint32_t page, std::int32_t group, std::int32_t slot) const noexcept {
    return BlockId(static_cast<std::int32_t>(page * slots_.size()) +
                   books_[index(group)].first_place + slot);
  }
  const Page& page(std::int32_t page) const noexcept { return pages_[index(page)]; }
  Page& page(std::int32_t page) noexcept { return pages_[index(page)]; }
  /// Whether the page of a block is carved into blocks of its group, and in service.
  bool is_carved(const BlockPlace& place) const noexcept {
    const Page& p = page(place.page);
    return p.group == place.group && p.queue != Queue::offline;
  }
  /// The pages that can be turned.
  std::int64_t available() const noexcept { return num_free_ + num_idle_; }
  std::int64_t num_free() const noexcept { return num_free_; }
  /// The slots of a page that are neither free nor evictable.
  std::int32_t num_held(const Page& p) const noexcept {
    return blocks_per_page(p.group) - p.num_free - p.num_evictable;
  }
  /// The blocks that can be taken one by one: in held pages that nobody keeps.
  std::int64_t num_leftover(std::int32_t group) const noexcept {
    const Books& b = books_[index(group)];
    return b.free - b.idle_free - b.kept_free + b.evictable - b.idle_evictable - b.kept_evictable;
  }
  PageStats stats() const noexcept;  ///< without reservations and watermark
  GroupStats stats(std::int32_t group) const noexcept;

  // ---- taking --------------------------------------------------------------------------------

  /// The page that a holder turned last for a group; kNone when it has none.
  std::uint32_t tail(std::size_t holder_slot, std::int32_t group) const noexcept {
    return tails_[holder_slot * groups_.size() + index(group)];
  }
  /// The free slots of a holder's tail page.
  std::int32_t own_slots(std::size_t holder_slot, std::int32_t group) const noexcept {
    const std::uint32_t page = tail(holder_slot, group);
    return page == kNone ? 0 : pages_[page].num_free;
  }
  /// Prepares the cache for take from a holder's tail page.
  void prefetch(std::size_t holder_slot, std::int32_t group) const noexcept {
    const std::uint32_t page = tail(holder_slot, group);
    if (page != kNone) __builtin_prefetch(&pages_[page], 1);
  }
  /// Returns the free page that is turned after the next `ahead` ones, and prepares the cache for
  /// it. kNone when there are fewer.
  std::uint32_t prefetch_free(std::int64_t ahead) const noexcept {
    if (ahead >= num_free_) return kNone;
    const std::uint32_t page = free_[index(num_free_ - 1 - ahead)];
    __builtin_prefetch(&pages_[page], 1);
    return page;
  }
  /// A page that was turned.
  struct Turned {
    std::uint32_t page;
    std::int32_t evicted_group;  ///< whose blocks were evicted
    Slots evicted;               ///< their slots
  };
  /// Carves a page for a holder. Requires available() > 0. All its slots are free; the caller takes
  /// at least one of them next.
  Turned turn(HolderId holder, std::size_t holder_slot, std::int32_t group) noexcept;
  /// The same for a group of one block a page, which it takes. Requires num_free() > 0.
  std::uint32_t turn_whole(std::int32_t group) noexcept;
  /// Takes the lowest free slot of a holder's tail page. Requires own_slots > 0.
  BlockId take_own(std::uint32_t page, std::int32_t group) noexcept;
  /// Takes the `count` lowest free slots of a page, or all. Returns them.
  Slots take(std::uint32_t page, std::int64_t count) noexcept;
  /// Takes an evictable slot for which no page is turned. Requires num_cached(group) > 0.
  Found take_evictable(std::int32_t group) noexcept;
  bool has_cached(std::int32_t group) const noexcept {
    return books_[index(group)].cached.head != kNone;
  }
  /// Takes the lowest free slot of the fullest page. Requires one.
  Found take_fullest(std::int32_t group) noexcept;
  /// The order of the idle pages, whose numbers stand for block ids; null with tail_first: then
  /// they are in a list. It remembers a page from the time at which it is carved.
  EvictionOrder* order() noexcept { return order_.get(); }
  const EvictionOrder* order() const noexcept { return order_.get(); }
  /// What the order calls a page.
  static BlockId key_of(std::uint32_t page) noexcept {
    return BlockId(static_cast<std::int32_t>(page));
  }
  /// From now on nobody takes single slots of the holder's pages. O(its pages) at first.
  void keep_pages(std::size_t holder_slot) noexcept;
  bool keeps_pages(std::size_t holder_slot) const noexcept { return keeps_[holder_slot] != 0; }
  /// See OwnPages::count.
  std::int32_t num_own_pages(std::size_t holder_slot, std::int32_t group) const noexcept {
    return own_pages_[holder_slot * groups_.size() + index(group)];
  }
  /// The owner of a page, if any, does not count on getting it back.
  void mix(std::uint32_t page) noexcept;
  /// Ends a holder's pages: nobody continues them. O(kept pages).
  void forget_holder(std::size_t holder_slot) noexcept;

  // ---- giving back ---------------------------------------------------------------------------

  /// Held slots of a page become free or evictable.
  void give_back(std::uint32_t page, const Returned& returned) noexcept;
  /// An evictable block becomes held.
  void revive(const BlockPlace& place) noexcept;
  /// An evictable block becomes free.
  void forget_cached(const BlockPlace& place) noexcept;
  /// A held, free or evictable block goes offline. O(num_pages) when its page is free. Requires
  /// that its page is not another group's.
  void take_offline(const BlockPlace& place) noexcept;
  /// An offline block becomes free, or absent.
  void bring_online(const BlockPlace& place) noexcept;
  /// A block of the group became fenced (1), or is not any more (-1).
  void count_fenced(std::int32_t group, std::int64_t change) noexcept {
    books_[index(group)].fenced += change;
  }

  // ---- proofs --------------------------------------------------------------------------------

  /// Whether the lists name every page that belongs into them, once, and no other. O(num_pages).
  bool lists_are_whole() const;
  /// Whether the counts of a group are the sums over its pages. O(num_pages).
  bool counts_agree(std::int32_t group) const noexcept;
  /// Whether a page's counts, bucket and queue are those of its slots.
  bool is_settled(const Page& page) const noexcept;
  /// Whether the lists that a page says it is in lead to it and on from it, and the free page of
  /// that index is one. For proofs in slices.
  bool is_linked(std::uint32_t page) const noexcept;

 private:
  friend struct PagePoolProbe;
  struct Slot {
    std::int16_t group;
    std::int16_t slot;
  };
  struct List {
    std::uint32_t head = kNone;
    std::uint32_t tail = kNone;
  };
  /// The counts and lists of a group.
  struct Books {
    std::int32_t blocks_per_page = 0;
    std::int32_t first_place = 0;  // of a page
    std::int64_t pages = 0;
    std::int64_t free = 0;
    std::int64_t evictable = 0;
    std::int64_t offline = 0;
    std::int64_t fenced = 0;
    std::int64_t idle_free = 0, idle_evictable = 0;  // the parts in idle pages
    std::int64_t kept_free = 0, kept_evictable = 0;  // and in those that are kept
    List cached;  // the page that has had evictable blocks for longest is first
    std::array<List, kMaxBlocksPerPage>
        by_free{};     // by free slots; the one that changed last first
    Slots filled = 0;  // bit f: by_free[f] has pages
    Slots all_slots() const noexcept {
      return blocks_per_page == kMaxBlocksPerPage ? ~Slots{0} : (Slots{1} << blocks_per_page) - 1;
    }
  };

  template <class Integer>
  static constexpr std::size_t index(Integer i) noexcept {
    return static_cast<std::size_t>(i);
  }
  Books& books_of(const Page& page) noexcept { return books_[index(page.group)]; }
  List& queue_of(const Page& page) noexcept {
    return page.queue == Queue::idle ? idle_ : books_of(page).cached;
  }
  Queue wanted_queue(const Page& page) const noexcept;
  std::uint8_t wanted_bucket(const Page& page) const noexcept;
  void settle(std::uint32_t page) noexcept;
  void give_back_whole(std::uint32_t page) noexcept;
  void change(Page& page, std::int32_t free, std::int32_t evictable) noexcept;
  void move_to_bucket(std::uint32_t page, std::uint8_t bucket) noexcept;
  void move_to_queue(std::uint32_t page, Queue queue) noexcept;
  bool is_in_list(Queue queue) const noexcept {
    return queue == Queue::cached || (queue == Queue::idle && order_ == nullptr);
  }
  std::uint32_t first_idle() noexcept {
    return order_ == nullptr ? idle_.head : static_cast<std::uint32_t>(order_->next().value);
  }
  void count_idle(const Page& page, std::int64_t sign) noexcept;
  void set_kept(Page& page, bool kept) noexcept;
  void relist(std::size_t holder_slot, bool kept) noexcept;
  bool has_owner(const Page& page) const noexcept;
  void leave_group(std::uint32_t page) noexcept;
  void disown(std::uint32_t page) noexcept;
  bool is_between(std::uint32_t page, const List& list, std::uint32_t Page::*previous,
                  std::uint32_t Page::*next) const noexcept;
  template <class Visit>
  bool walk(const List& list, std::uint32_t Page::*next, std::uint32_t Page::*previous,
            Visit visit) const;
  bool count_listings(std::vector<std::uint8_t>& in_queue,
                      std::vector<std::uint8_t>& in_bucket) const;
  bool owners_are_whole() const;

  std::vector<BlockGroup> groups_;
  std::vector<Books> books_;
  std::vector<Slot> slots_;       // of the ids of a page
  std::uint64_t reciprocal_ = 0;  // of their number: id * reciprocal_ >> shift_ is the page
  int shift_ = 0;
  std::vector<Page> pages_;
  std::vector<std::uint32_t> free_;      // [0, num_free_); the last one is turned next
  std::vector<std::uint32_t> tails_;     // [max_holders, num_groups]
  std::vector<std::int32_t> own_pages_;  // [max_holders, num_groups]
  std::vector<HolderId> owners_;         // [max_holders]: who has the tails
  std::vector<std::uint8_t> keeps_;      // [max_holders]: whether it keeps its pages
  List idle_;  // the page that has been idle for longest is first; empty with an order
  std::unique_ptr<EvictionOrder> order_;
  std::int64_t num_free_ = 0;
  std::int64_t num_idle_ = 0;
  std::int64_t num_offline_ = 0;
  std::int64_t peak_used_ = 0;
  std::uint64_t turned_ = 0;
  StateCounts* totals_;
};

}  // namespace kvarena
