#pragma once

/// @file
/// `PageWriters`: the part of the groups that wrote in each page of a pool last, and the pages that
/// a step clears because they go to another part: its blocks lie elsewhere in them. A page that a
/// step writes in first is cleared as a whole. An import is written outside steps, so the step
/// behind it clears what follows the import's blocks in its page. The import's own blocks keep what
/// was there, until the page is free and used again. One thread at a time. No allocation after
/// construction.

#include "allocator/page_pool.hpp"
#include "base/lazy_array.hpp"
#include "kernels/params.h"
#include "kvarena/cache/kv_cache.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvarena {

/// The pages of one cache.
class PageWriters {
 public:
  /// Pages have `page_bytes` bytes. `pages` outlives the object. Throws std::bad_alloc.
  PageWriters(const PagePool& pages, std::int64_t page_bytes);
  static std::int64_t host_bytes(std::int64_t num_pages) noexcept;

  /// A step begins.
  void begin_step() noexcept;
  /// Notes that a step writes blocks of part `part` in a page. When another part, or nobody, wrote
  /// there last, the step clears the page, and the function returns true.
  bool take(std::int64_t page, std::int32_t part) noexcept;
  /// All pages that the step writes in have been taken. Returns what it clears: pages as blocks of
  /// their own, with the kept bytes in kPageUnit.
  std::span<const kernels::BlockScrub> end_step() noexcept;
  /// Says that the step's pages were not cleared.
  void forget() noexcept;
  /// Notes that others write a block of part `part`, which ends `end` bytes behind the begin of its
  /// page. Returns whether another part wrote in the page last.
  bool note_import(std::int64_t page, std::int32_t part, std::int64_t end) noexcept;

  /// Says that nobody knows whether the pages of the last steps were cleared. Those of them that
  /// become free are cleared again when they are used. O(pages).
  void distrust() noexcept;
  /// Notes which pages in doubt and of imports have been free: nobody wrote in these. An append or
  /// an import has taken its pages, and what it writes there is not noted yet. O(pages in doubt and
  /// of imports).
  void note_freed() noexcept;

 private:
  /// A step whose work is not known to be done is one of so many last ones.
  static constexpr std::uint32_t kDoubtfulSteps = 18;

  /// Bits beside part + 1: the page is in the list of imports' pages, and it has blocks that were
  /// not cleared when it went to their part.
  static constexpr std::uint16_t kIsListed = 0x8000;
  static constexpr std::uint16_t kIsUncleared = 0x4000;

  /// Notes who writes in a page. Returns whether another part, or nobody, wrote there last.
  bool change_part(std::int64_t page, std::int32_t part, std::uint16_t bits) noexcept;
  /// Whether a page of a list has been free since it came there.
  bool has_been_free(std::int32_t page) const noexcept {
    const PooledPage& its = pages_->page(page);
    return its.group == -1 || its.turns != turns_[static_cast<std::size_t>(page)];
  }
  /// Says that nobody wrote in a page.
  void clear_part(std::int64_t page) noexcept {
    parts_[static_cast<std::size_t>(page)] &= kIsListed;
  }

  const PagePool* pages_;
  std::int64_t page_units_;                // of a page; 0: it does not consist of kPageUnit
  LazyArray<std::uint16_t> parts_;         // [num_pages] part + 1, with bits; 0: nobody
  LazyArray<std::int32_t> rests_;          // [num_pages] units in front of what the next step
                                           // clears; 0: the page is not in the next list
  LazyArray<std::int32_t> with_rest_;      // pages that imports have written
  LazyArray<std::int32_t> uncleared_;      // pages with kIsListed
  LazyArray<std::uint32_t> turns_;         // [num_pages] of pages in both lists: when they came
  LazyArray<std::uint32_t> steps_;         // [num_pages] the step that cleared it last; 0: none
  LazyArray<std::int32_t> doubtful_;       // pages that may not have been cleared
  LazyArray<kernels::BlockScrub> clears_;  // [num_pages]
  std::size_t num_with_rest_ = 0;
  std::size_t num_uncleared_ = 0;
  std::size_t num_doubtful_ = 0;
  std::size_t num_clears_ = 0;
  std::uint32_t step_ = 0;
};

}  // namespace kvarena
