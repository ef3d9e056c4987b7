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

bool BlockTables::have_common_block(std::span<const AppendedRow> rows,
                                    std::int32_t index) noexcept {
  const BlockStats stats = impl_->manager->stats();
  if (stats.references == stats.referenced) return false;
  const auto block_of = [&](const AppendedRow& row) {
    Sequence* s = impl_->sequences.at(row.slot);
    return s == nullptr || index < 0 || index >= s->filled_blocks
               ? kNoBlock
               : s->table.id_at(impl_->pages, index);
  };
  const auto word_of = [&](BlockId block) -> std::uint64_t& {
    return impl_->seen_blocks[static_cast<std::size_t>(block.value / 64)];
  };
  const auto bit_of = [](BlockId block) { return std::uint64_t{1} << block.value % 64; };
  bool is_common = false;
  std::size_t looked = 0;
  for (; looked < rows.size() && !is_common; ++looked) {
    const BlockId block = block_of(rows[looked]);
    if (block == kNoBlock) continue;
    is_common = (word_of(block) & bit_of(block)) != 0;
    word_of(block) |= bit_of(block);
  }
  for (const AppendedRow& row : rows.first(looked)) {
    if (const BlockId block = block_of(row); block != kNoBlock) word_of(block) = 0;
  }
  return is_common;
}

}  // namespace kvarena
