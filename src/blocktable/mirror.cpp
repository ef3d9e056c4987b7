// The blocks that a mirror of the tables has, and those that it lacks.

#include "blocktable/block_tables_impl.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>

namespace kvarena {

std::int32_t BlockTables::changed_blocks(std::int32_t slot) const noexcept {
  const Sequence* s = impl_->sequences.at(slot);
  return s == nullptr ? 0 : s->filled_blocks - s->mirrored_blocks;
}

/// Copies the changed ids page by page.
std::int32_t BlockTables::mirror_changes(std::int32_t slot, std::span<BlockId> out) noexcept {
  Sequence* s = impl_->sequences.at(slot);
  if (s == nullptr) return 0;
  const std::int32_t changed = s->filled_blocks - s->mirrored_blocks;
  if (static_cast<std::size_t>(changed) > out.size()) return 0;
  for (BlockId* to = out.data(); s->mirrored_blocks < s->filled_blocks;) {
    const std::int32_t place = s->mirrored_blocks & kPageMask;
    const std::int32_t leaf = s->table.leaf_page(impl_->pages, s->mirrored_blocks >> kPageShift);
    const std::int32_t run = std::min(kPageEntries - place, s->filled_blocks - s->mirrored_blocks);
    to = std::copy_n(impl_->pages.ids(leaf) + place, run, to);
    s->mirrored_blocks += run;
  }
  return changed;
}

void BlockTables::unmirror(std::int32_t slot, std::int32_t blocks) noexcept {
  Sequence* s = impl_->sequences.at(slot);
  if (s != nullptr) s->mirrored_blocks = std::min(s->mirrored_blocks, blocks);
}

}  // namespace kvarena
