// Copies of the tables for others: the blocks that a mirror has and those that it lacks, and whole
// rows.

#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <limits>

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

/// Checks every row before it writes any.
Status BlockTables::copy_rows(std::span<const SequenceId> ids, std::span<std::int32_t> entries,
                              std::int64_t stride, std::span<std::int32_t> lengths,
                              std::int32_t group) const {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Impl& t = *impl_;
  if (t.groups) return t.groups->copy_rows(ids, entries, stride, lengths, group);
  if (Status s = t.check_group(group); !s) return s;
  std::int64_t longest = 0;
  for (const SequenceId id : ids) {
    const Sequence* s = t.sequences.find(id);
    if (s == nullptr) return not_found(Resource::sequence, id.value);
    longest = std::max<std::int64_t>(longest, s->filled_blocks);
  }
  if (stride < longest) return invalid_argument(Resource::span_size, stride, longest, kMost);
  const std::int64_t rows = std::ssize(ids);
  if (rows > 0 && std::ssize(entries) / rows < stride) {
    const std::int64_t needed = stride > kMost / rows ? kMost : rows * stride;
    return invalid_argument(Resource::span_size, std::ssize(entries), needed, kMost);
  }
  if (!lengths.empty() && std::ssize(lengths) < rows) {
    return invalid_argument(Resource::span_size, std::ssize(lengths), rows, kMost);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    const Sequence& s = *t.sequences.find(ids[static_cast<std::size_t>(row)]);
    std::int32_t* to = entries.data() + row * stride;
    for (std::int32_t first = 0; first < s.filled_blocks; first += kPageEntries) {
      const BlockId* const from = t.pages.ids(s.table.leaf_page(t.pages, first >> kPageShift));
      to = std::transform(from, from + std::min(kPageEntries, s.filled_blocks - first), to,
                          [](BlockId id) { return id.value; });
    }
    std::fill(to, entries.data() + (row + 1) * stride, kNoBlock.value);
    if (!lengths.empty()) lengths[static_cast<std::size_t>(row)] = s.length;
  }
  return {};
}

std::int32_t BlockTables::most_sharers(std::span<const AppendedRow> rows,
                                       std::int32_t index) noexcept {
  const BlockStats stats = impl_->manager->stats();
  if (stats.references == stats.referenced) return 0;
  // The number of rows that have the row's block, or null when its table has no such entry.
  const auto count_of = [&](const AppendedRow& row) -> std::int32_t* {
    Sequence* s = impl_->sequences.at(row.slot);
    if (s == nullptr || index < 0 || index >= s->filled_blocks) return nullptr;
    const BlockId block = s->table.id_at(impl_->pages, index);
    return &impl_->sharers[static_cast<std::size_t>(block.value)];
  };
  std::int32_t most = 0;
  for (const AppendedRow& row : rows) {
    if (std::int32_t* count = count_of(row); count != nullptr) most = std::max(most, ++*count);
  }
  for (const AppendedRow& row : rows) {
    if (std::int32_t* count = count_of(row); count != nullptr) *count = 0;
  }
  return most > 1 ? most : 0;
}

}  // namespace kvarena
