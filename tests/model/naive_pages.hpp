#pragma once

/// @file
/// `NaivePages`: what a BlockManager with groups promises, written as plainly as possible. A page
/// is a list of its slots' blocks; every order is found by looking at all pages; a call that may
/// fail is tried on a copy. It predicts ids, generations, evictions, refusals and the accounts.

#include "kvarena/allocator/block_manager.hpp"
#include "model/naive_eviction.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvarena::model {

/// A block reference as callers keep it.
struct PageHandle {
  BlockId id;
  Generation generation;
  friend bool operator==(const PageHandle&, const PageHandle&) = default;
};

/// The plain model of a BlockManager with groups.
class NaivePages {
 public:
  NaivePages(std::int64_t num_pages, std::vector<BlockGroup> groups, std::int64_t watermark,
             EvictionPolicy policy = EvictionPolicy::tail_first);

  void adopt_holder(HolderId holder) { holders_[holder] = {}; }
  StatusCode unregister_holder(HolderId holder);
  StatusCode reserve(HolderId holder, std::int64_t pages, Urgency urgency);
  /// Takes blocks for demands that name registered holders and groups in order. Fills in handles.
  Status allocate(std::span<const HolderDemand> demands, Urgency urgency,
                  std::vector<PageHandle>& handles);
  StatusCode retain(HolderId holder, std::span<const PageHandle> handles);
  StatusCode release(HolderId holder, std::span<const PageHandle> handles,
                     std::optional<Ticket> ticket = std::nullopt);
  void retire(Ticket ticket);
  StatusCode set_content(const PageHandle& handle, BlockContent content);
  StatusCode set_retention(const PageHandle& handle, const RetentionHint& retention);
  void advance_clock(std::int64_t now) { order_.advance_clock(now); }
  std::int64_t clock() const { return order_.clock(); }
  RetentionHint retention(BlockId id) const { return order_.retention(key_of(page_of(id))); }
  /// -1: refused; otherwise whether the block is offline now.
  int quarantine(BlockId id);
  StatusCode restore(BlockId id);

  BlockState state(BlockId id) const;
  std::uint32_t generation(BlockId id) const { return at(id).generation; }
  std::int64_t references(BlockId id) const { return at(id).live; }
  PageStats page_stats() const;
  GroupStats group_stats(std::int32_t group) const;
  std::int64_t reserved(HolderId holder) const { return holders_.at(holder).reserved; }
  std::int64_t holder_bytes(HolderId holder) const { return holders_.at(holder).bytes; }
  std::int64_t returning(Ticket last) const;
  const std::vector<BlockId>& evicted() const { return evicted_; }
  std::int64_t available() const { return page_stats().available(); }
  std::int64_t usable(Urgency urgency) const;
  /// Blocks that can still be found: cached ones.
  std::vector<PageHandle> cached() const;

 private:
  struct Block {
    std::int64_t live = 0;
    std::vector<Ticket> fences;
    BlockContent content = BlockContent::unwritten;
    bool leaving = false;  // goes offline with its last reference
    bool offline = false;
    bool cached = false;
    std::uint32_t generation = 0;
    bool is_held() const { return live != 0 || !fences.empty(); }
  };
  struct Page {
    int group = -1;
    bool in_service = true;
    HolderId owner;               // kNoHolder: nobody continues it
    std::uint64_t turned_at = 0;  // times are numbers of changes
    std::uint64_t cached_since = 0;
    std::uint64_t free_changed = 0;
    int num_free = 0;
    bool was_idle = false;
    bool was_cached = false;
    bool was_held = false;
  };
  struct Holder {
    std::int64_t references = 0;
    std::int64_t reserved = 0;
    std::int64_t bytes = 0;
    bool keeps_pages = false;  // pages were promised to it
  };
  /// The new pages that a demand wants, and how many of them were promised to its holder.
  struct WantedPages {
    std::int64_t pages = 0;
    std::int64_t promised = 0;
  };
  /// A page's slots by what they are.
  struct Slots {
    int free = 0, cached = 0, held = 0, offline = 0;
    bool is_idle() const { return held + offline == 0 && cached > 0; }
  };

  int num_slots(int group) const {
    return groups_[static_cast<std::size_t>(group)].blocks_per_page;
  }
  BlockId id_of(std::size_t page, int group, int slot) const;
  Block& at(BlockId id) { return blocks_[static_cast<std::size_t>(id.value)]; }
  const Block& at(BlockId id) const { return blocks_[static_cast<std::size_t>(id.value)]; }
  std::size_t page_of(BlockId id) const;
  /// What the order calls a page.
  static BlockId key_of(std::size_t page) { return BlockId(static_cast<std::int32_t>(page)); }
  int group_of(BlockId id) const;
  std::int64_t bytes_of(BlockId id) const;
  bool is_free(BlockId id) const;
  bool is_kept(std::size_t page) const;
  Slots slots_of(std::size_t page) const;
  void refresh(std::size_t page);
  void drop(BlockId id);
  bool take_own(HolderId holder, int group, PageHandle& handle);
  bool take_of_new_page(HolderId holder, int group, Urgency urgency, bool unlimited,
                        std::int64_t& promised, PageHandle& handle);
  bool take_leftover(int group, PageHandle& handle);
  PageHandle hand_out(BlockId id);
  void evict(BlockId id);
  void serve_pages(std::span<const HolderDemand> demands, Urgency urgency,
                   std::vector<PageHandle>& handles, std::vector<std::int64_t> promised,
                   std::optional<Urgency> only, bool may_turn_all);
  std::vector<WantedPages> wanted_by(std::span<const HolderDemand> demands) const;
  std::vector<std::int64_t> promises_of(std::span<const HolderDemand> demands) const;
  bool serve_leftovers(std::span<const HolderDemand> demands, Urgency urgency,
                       std::vector<PageHandle>& handles);
  bool fits(std::span<const HolderDemand> demands, Urgency urgency) const;
  Status refusal(std::span<const HolderDemand> demands, Urgency urgency) const;

  std::vector<BlockGroup> groups_;
  std::int64_t ids_per_page_ = 0;
  std::int64_t watermark_ = 0;
  std::vector<Block> blocks_;
  std::vector<Page> pages_;
  std::vector<std::size_t> free_;  // the last one is turned next
  std::map<HolderId, Holder> holders_;
  std::map<Ticket, std::vector<BlockId>> fenced_;  // in the order of release
  std::vector<BlockId> evicted_;
  NaiveEviction order_;    // of the pages that are idle
  std::uint64_t run_ = 0;  // of the present call
  std::uint64_t now_ = 1;
  std::int64_t peak_used_ = 0;
  std::uint64_t turned_ = 0;
};

}  // namespace kvarena::model
