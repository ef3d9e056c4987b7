#pragma once

/// @file
/// Pages: the upper level of a pool whose blocks belong to several groups. All pages have the same
/// bytes. A page is free, offline, or of one group: then it is carved into that group's blocks,
/// which may be of another size than those of other groups. A page is free again at the moment when
/// none of its blocks is held, cached or offline. No share of the pool belongs to a group, and
/// nothing is moved. A BlockManager with groups keeps the books of both levels; these are its words
/// and figures.
///
/// The order of allocation, for each block:
///
/// 1. the lowest free slot of the page that the holder turned last for this group;
/// 2. a new page of the holder, from the free pages: it *turns* the page. The page freed last is
///    turned first; a fresh pool turns 0, 1, 2, ...
/// 3. a new page from those whose blocks are all free or evictable (*idle* pages), of any group:
///    the one that the eviction policy says, by default the one that has been so for longest. All
///    its cached blocks are evicted;
/// 4. for growth, an evictable block in the page of the group that has had evictable blocks for
///    longest, its highest slot first;
/// 5. for growth, the lowest free slot in the fullest page of the group. Of pages that are equally
///    full, it takes the one whose number of free slots changed last.
///
/// Pages that are promised to other holders, and for admission the watermark, are not turned. A
/// call takes 1 to 3 for all of its demands before it takes 4 and 5 for any. A holder's promise
/// serves its demands in their order. It counts on all slots of the holder's pages: from the first
/// promise until the holder ends, no 4 and 5 takes a block of them, its own neither. A free block
/// of them that is quarantined adds a page to the promise.
///
/// Thus a holder fills pages of its own, one after the other. `u` blocks that only grow and shrink
/// at their end lie in ceil(u / m) pages of m blocks; blocks that also leave at their beginning,
/// like those of a window, in floor((u + m - 2) / m) + 1 (`pages_of` in choose_pages.hpp). Three
/// things cost one page more each: a point where others keep the holder's blocks and it goes on
/// alone (a fork, or cached blocks that it gave up at its end); a block of step 4 or 5, which
/// happens only when no page can be had; a fenced block, until its ticket retires. A pool with that
/// many pages for each of its sequences, and the pages of a step, refuses none of them: in a step a
/// sequence takes blocks before it gives others back. capacity/kv_memory.hpp counts both.
///
/// Eviction policies (eviction_policy.hpp) order idle pages, because what an allocation lacks is a
/// page: all blocks of it go together. Read "page" for "block" there. A page becomes evictable when
/// it becomes idle; head_first reverses the runs of pages that one release (or ticket) makes idle;
/// lfu counts a use of a page for each run of its published blocks in a retain; with priority a
/// page has one retention, the one that was set last for a block of it. What is known of a page
/// ends when it is free or turned. Where each page has one block, a page's policy is the block's.
/// Step 4 takes the oldest page with every policy: it comes when no page can be had. No policy
/// changes what is refused.

#include "kvarena/base/choose_pages.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// The most groups of a pool.
inline constexpr std::size_t kMaxBlockGroups = 32;
/// The most blocks of a page.
inline constexpr std::int32_t kMaxBlocksPerPage = 64;

/// How one group carves a page.
struct BlockGroup {
  std::int32_t blocks_per_page = 1;  ///< 1 .. kMaxBlocksPerPage
  std::int64_t block_bytes = 1;      ///< bytes of a block, for reports; 1 .. 2^40
  PagedKind kind = PagedKind::full;  ///< what its layers keep, for reports
};

/// Where a block lies. A block's id is `page * m + place`, where m is the sum of the
/// blocks_per_page of all groups, and `place` counts the slots of all groups in order.
struct BlockPlace {
  std::int32_t page = 0;   ///< 0 .. num_pages - 1
  std::int32_t group = 0;  ///< 0 .. num_groups - 1
  std::int32_t slot = 0;   ///< 0 .. blocks_per_page - 1, in the order of addresses
  friend constexpr bool operator==(const BlockPlace&, const BlockPlace&) noexcept = default;
};

/// Counts of the pages of a pool.
struct PageStats {
  std::int64_t num_pages = 0;   ///< all pages
  std::int64_t free = 0;        ///< of no group
  std::int64_t of_groups = 0;   ///< carved
  std::int64_t offline = 0;     ///< out of service: only offline and free blocks are left
  std::int64_t evictable = 0;   ///< the part of `of_groups` that can be turned: no block is held
  std::int64_t reserved = 0;    ///< promised to holders; still part of free + evictable
  std::int64_t watermark = 0;   ///< pages that admission leaves available
  std::int64_t peak_used = 0;   ///< the most pages that were not free at one time
  std::uint64_t turned = 0;     ///< pages carved since create
  std::int64_t page_bytes = 0;  ///< as created; 0: not told (BlockManagerOptions::page_bytes)

  /// free + evictable: the pages that can be turned, with the reservations of all holders.
  constexpr std::int64_t available() const noexcept { return free + evictable; }
  /// free + of_groups + offline == num_pages.
  constexpr bool balanced() const noexcept { return free + of_groups + offline == num_pages; }
};

/// Counts of the blocks of one group, in its pages.
struct GroupStats {
  std::int64_t pages = 0;            ///< carved for the group
  std::int64_t blocks_per_page = 0;  ///< as created
  std::int64_t block_bytes = 0;      ///< as created
  std::int64_t free = 0;             ///< by state
  std::int64_t referenced = 0;       ///< by state
  std::int64_t fenced = 0;           ///< by state
  std::int64_t evictable = 0;        ///< by state
  std::int64_t offline = 0;          ///< by state; a page out of service is of no group, and
                                     ///< PageStats::offline counts it in place of its blocks
  std::int64_t stranded = 0;  ///< the part of `free` whose page has a held block: only this group
                              ///< can use them

  /// free + fenced + evictable + referenced + offline == pages x blocks_per_page.
  constexpr bool balanced() const noexcept {
    return free + fenced + evictable + referenced + offline == pages * blocks_per_page;
  }
};

}  // namespace kvarena
