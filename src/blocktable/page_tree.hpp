#pragma once

/// @file
/// `TablePages` and `PageTree`: the storage of table entries. A page has kPageEntries block ids; a
/// parallel array has their generations. The entries of a sequence fill leaf pages in order. When
/// one leaf is not enough, directory pages above the leaves form a radix tree; the ids in them are
/// page numbers. The tree grows at the root, so any entry is found in O(depth), depth <= 4.

#include "base/lazy_array.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>

namespace kvarena {

inline constexpr std::int32_t kPageShift = 7;  ///< log2 of the entries in a page
inline constexpr std::int32_t kPageMask = (1 << kPageShift) - 1;
static_assert(BlockTables::kPageEntries == 1 << kPageShift);

/// All pages; their number is fixed at create. Memory is touched only when a page is first used.
class TablePages {
 public:
  static constexpr std::int32_t kNoPage = -1;

  explicit TablePages(std::int64_t num_pages);

  std::int64_t num_pages() const noexcept { return num_pages_; }
  std::int64_t used() const noexcept { return used_; }
  std::int64_t available() const noexcept { return num_pages_ - used_; }

  /// Takes a page; the page freed last is taken first. Requires available() > 0.
  std::int32_t take() noexcept;
  void put_back(std::int32_t page) noexcept;

  /// The [kPageEntries] ids of a page.
  BlockId* ids(std::int32_t page) noexcept { return ids_.data() + first(page); }
  const BlockId* ids(std::int32_t page) const noexcept { return ids_.data() + first(page); }
  /// The [kPageEntries] generations of a page.
  Generation* generations(std::int32_t page) noexcept { return generations_.data() + first(page); }
  const Generation* generations(std::int32_t page) const noexcept {
    return generations_.data() + first(page);
  }
  /// All ids, [num_pages * kPageEntries], for views.
  const BlockId* all_ids() const noexcept { return ids_.data(); }

 private:
  static std::int64_t first(std::int32_t page) noexcept {
    return static_cast<std::int64_t>(page) << kPageShift;
  }
  LazyArray<BlockId> ids_;
  LazyArray<Generation> generations_;
  std::int64_t num_pages_;
  std::int64_t used_ = 0;
  std::int32_t untouched_ = 0;         // pages from here on were never used
  std::int32_t first_free_ = kNoPage;  // freed pages, linked through their first id
};

/// The tree of one sequence. Trivially copyable; its pages belong to the owner of the tree.
struct PageTree {
  std::int32_t root = TablePages::kNoPage;
  std::int32_t depth = 0;  ///< directory levels above the leaves
  std::int32_t last_leaf = TablePages::kNoPage;
  std::int32_t num_entries = 0;

  /// Returns the number of pages, with directories, that `entries` entries need.
  static std::int64_t pages_for(std::int64_t entries) noexcept;
  /// Returns the number of pages that a new tree with `entries` entries needs, of which the first
  /// `num_absent` are absent.
  static std::int64_t pages_for_new(std::int64_t num_absent, std::int64_t entries) noexcept {
    const std::int64_t leaves_absent = num_absent < entries ? num_absent >> kPageShift : 0;
    return pages_for(entries) - leaves_absent;
  }

  /// Returns the number of pages that a tree with `entries` entries takes for `added` more.
  static std::int64_t pages_to_grow(std::int64_t entries, std::int64_t added) noexcept {
    const bool is_same_leaf =
        (entries + kPageMask) >> kPageShift == (entries + added + kPageMask) >> kPageShift;
    return is_same_leaf ? 0 : pages_for(entries + added) - pages_for(entries);
  }

  std::int32_t num_leaves() const noexcept { return (num_entries + kPageMask) >> kPageShift; }
  /// Returns the page of leaf `leaf`; kNoPage when it was dropped. Requires leaf < num_leaves().
  /// O(depth).
  std::int32_t leaf_page(const TablePages& pool, std::int32_t leaf) const noexcept {
    if (depth == 0) return root;
    return leaf == (num_entries - 1) >> kPageShift ? last_leaf : leaf_below(pool, leaf);
  }
  /// Returns entry `index`. Requires index < num_entries. O(depth).
  BlockId& id_at(TablePages& pool, std::int32_t index) const noexcept {
    return pool.ids(leaf_page(pool, index >> kPageShift))[index & kPageMask];
  }
  BlockId id_at(const TablePages& pool, std::int32_t index) const noexcept {
    return pool.ids(leaf_page(pool, index >> kPageShift))[index & kPageMask];
  }
  Generation& generation_at(TablePages& pool, std::int32_t index) const noexcept {
    return pool.generations(leaf_page(pool, index >> kPageShift))[index & kPageMask];
  }
  /// Appends entries. Requires pages_to_grow(num_entries, count) available pages.
  void append(TablePages& pool, const BlockId* ids, const Generation* generations,
              std::int32_t count) noexcept {
    const std::int32_t place = num_entries & kPageMask;
    if (count != 1 || place == 0) return append_many(pool, ids, generations, count);
    pool.ids(last_leaf)[place] = *ids;
    pool.generations(last_leaf)[place] = *generations;
    ++num_entries;
  }
  /// Removes the last `count` entries, which are all on the last leaf, and frees pages that become
  /// empty.
  void remove_last(TablePages& pool, std::int32_t count) noexcept;
  /// Adds `count` absent entries, kNoBlock, to an empty tree. Pages without another entry are not
  /// taken. An entry that is present must follow before the tree is used otherwise.
  void append_absent(TablePages& pool, std::int32_t count) noexcept;
  /// Gives back the page of a leaf that has only absent entries. It is not the last leaf.
  void drop_leaf(TablePages& pool, std::int32_t leaf) noexcept;
  /// Gives all pages back; the tree is empty then.
  void clear(TablePages& pool) noexcept;
  /// The number of entries on the last leaf.
  std::int32_t on_last_leaf() const noexcept {
    return num_entries == 0 ? 0 : ((num_entries - 1) & kPageMask) + 1;
  }

 private:
  std::int32_t leaf_below(const TablePages& pool, std::int32_t leaf) const noexcept;
  void append_many(TablePages& pool, const BlockId* ids, const Generation* generations,
                   std::int32_t count) noexcept;
  void add_leaf(TablePages& pool, std::int32_t new_leaf) noexcept;
  static void put_back_below(TablePages& pool, std::int32_t page, std::int32_t level,
                             std::int32_t leaves) noexcept;
  void remove_leaf(TablePages& pool) noexcept;
};

}  // namespace kvarena
