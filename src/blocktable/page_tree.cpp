#include "blocktable/page_tree.hpp"

#include <algorithm>
#include <array>

namespace kvarena {
namespace {

/// Returns which child of a directory at `level` leads to `leaf`. Level 1 is just above the leaves.
std::int32_t child_of(std::int32_t leaf, std::int32_t level) noexcept {
  return (leaf >> (kPageShift * (level - 1))) & kPageMask;
}

/// Returns whether `leaf` is the first leaf below a directory at `level`.
bool is_first_below(std::int32_t leaf, std::int32_t level) noexcept {
  return (leaf & ((std::int32_t{1} << (kPageShift * level)) - 1)) == 0;
}

}  // namespace

TablePages::TablePages(std::int64_t num_pages)
    : ids_(static_cast<std::size_t>(num_pages << kPageShift)),
      generations_(static_cast<std::size_t>(num_pages << kPageShift)),
      num_pages_(num_pages) {}

std::int32_t TablePages::take() noexcept {
  ++used_;
  if (first_free_ == kNoPage) return untouched_++;
  const std::int32_t page = first_free_;
  first_free_ = ids(page)[0].value;
  return page;
}

void TablePages::put_back(std::int32_t page) noexcept {
  --used_;
  ids(page)[0] = BlockId(first_free_);
  first_free_ = page;
}

/// Adds up the levels of the tree, from the leaves to the root.
std::int64_t PageTree::pages_for(std::int64_t entries) noexcept {
  std::int64_t level = (entries + kPageMask) >> kPageShift;
  std::int64_t pages = level;
  while (level > 1) {
    level = (level + kPageMask) >> kPageShift;
    pages += level;
  }
  return pages;
}

std::int32_t PageTree::leaf_below(const TablePages& pool, std::int32_t leaf) const noexcept {
  std::int32_t page = root;
  for (std::int32_t level = depth; level > 0; --level) {
    page = pool.ids(page)[child_of(leaf, level)].value;
  }
  return page;
}

/// Fills the last leaf, then adds leaves.
void PageTree::append_many(TablePages& pool, const BlockId* ids, const Generation* generations,
                           std::int32_t count) noexcept {
  while (count > 0) {
    const std::int32_t place = num_entries & kPageMask;
    if (place == 0) add_leaf(pool, pool.take());
    const std::int32_t run = std::min(count, BlockTables::kPageEntries - place);
    std::copy_n(ids, run, pool.ids(last_leaf) + place);
    std::copy_n(generations, run, pool.generations(last_leaf) + place);
    num_entries += run;
    ids += run;
    generations += run;
    count -= run;
  }
}

void PageTree::remove_last(TablePages& pool, std::int32_t count) noexcept {
  num_entries -= count;
  if ((num_entries & kPageMask) == 0 && count > 0) remove_leaf(pool);
}

/// Adds `new_leaf` as the last leaf, with the directories that it needs.
void PageTree::add_leaf(TablePages& pool, std::int32_t new_leaf) noexcept {
  const std::int32_t leaf = num_entries >> kPageShift;
  last_leaf = new_leaf;
  if (leaf == 0) {
    root = last_leaf;
    return;
  }
  if (leaf >> (kPageShift * depth) != 0) {  // the tree is full: the old root goes below a new one
    const std::int32_t above = pool.take();
    pool.ids(above)[0] = BlockId(root);
    root = above;
    ++depth;
  }
  std::int32_t page = root;
  for (std::int32_t level = depth; level > 1; --level) {
    BlockId& child = pool.ids(page)[child_of(leaf, level)];
    if (is_first_below(leaf, level - 1)) child = BlockId(pool.take());
    page = child.value;
  }
  pool.ids(page)[child_of(leaf, 1)] = BlockId(last_leaf);
}

/// Removes the last leaf, which is empty, and the directories that become empty with it.
void PageTree::remove_leaf(TablePages& pool) noexcept {
  const std::int32_t leaf = num_entries >> kPageShift;  // the leaf that has become empty
  std::array<std::int32_t, 5> path{};                   // path[level] is the page at that level
  path[static_cast<std::size_t>(depth)] = root;
  for (std::int32_t level = depth; level > 0; --level) {
    const BlockId* children = pool.ids(path[static_cast<std::size_t>(level)]);
    path[static_cast<std::size_t>(level) - 1] = children[child_of(leaf, level)].value;
  }
  pool.put_back(path[0]);
  for (std::int32_t level = 1; level < depth && is_first_below(leaf, level); ++level) {
    pool.put_back(path[static_cast<std::size_t>(level)]);
  }
  if (leaf == 0) {
    *this = PageTree{};
    return;
  }
  // `leaf` leaves remain. A root with only one child is replaced by that child.
  if (depth > 0 && leaf == std::int32_t{1} << (kPageShift * (depth - 1))) {
    const std::int32_t child = pool.ids(root)[0].value;
    pool.put_back(root);
    root = child;
    --depth;
  }
  last_leaf = depth == 0 ? root : leaf_below(pool, leaf - 1);
}

/// Leaves without a page are in their directory as kNoPage.
void PageTree::append_absent(TablePages& pool, std::int32_t count) noexcept {
  while (count > kPageMask) {
    add_leaf(pool, TablePages::kNoPage);
    num_entries += BlockTables::kPageEntries;
    count -= BlockTables::kPageEntries;
  }
  if (count == 0) return;
  add_leaf(pool, pool.take());
  std::fill_n(pool.ids(last_leaf), count, kNoBlock);
  num_entries += count;
}

void PageTree::drop_leaf(TablePages& pool, std::int32_t leaf) noexcept {
  std::int32_t page = root;
  for (std::int32_t level = depth; level > 1; --level) {
    page = pool.ids(page)[child_of(leaf, level)].value;
  }
  BlockId& child = pool.ids(page)[child_of(leaf, 1)];  // two leaves have a directory
  pool.put_back(child.value);
  child = BlockId(TablePages::kNoPage);
}

void PageTree::clear(TablePages& pool) noexcept {
  if (num_entries != 0) put_back_below(pool, root, depth, num_leaves());
  *this = PageTree{};
}

/// Gives back a page and what is below it: `leaves` leaves.
void PageTree::put_back_below(TablePages& pool, std::int32_t page, std::int32_t level,
                              std::int32_t leaves) noexcept {
  if (page == TablePages::kNoPage) return;
  const std::int32_t below = level == 0 ? 0 : std::int32_t{1} << (kPageShift * (level - 1));
  for (std::int32_t child = 0; level > 0 && child * below < leaves; ++child) {
    put_back_below(pool, pool.ids(page)[child].value, level - 1,
                   std::min(below, leaves - child * below));
  }
  pool.put_back(page);
}

}  // namespace kvarena
