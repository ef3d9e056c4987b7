// What a mirror of the tables of groups has, such as that of a device.

#include "blocktable/group_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {

void BlockTables::Impl::Groups::set_mirrored(Sequence& s, std::size_t g,
                                             std::int32_t blocks) noexcept {
  Table& table = tables_of(s.id)[g];
  const bool was_behind = is_behind(list[g], table, s.length);
  table.mirrored = blocks;
  const bool is_now = is_behind(list[g], table, s.length);
  if (is_now != was_behind) is_now ? ++s.num_behind : --s.num_behind;
}

TableChanges BlockTables::table_changes(std::int32_t slot, std::int32_t group) const noexcept {
  Impl& t = *impl_;
  const Sequence* const s = t.sequences.at(slot);
  if (s == nullptr || !t.groups) return {};
  const Impl::Groups& groups = *t.groups;
  const auto g = static_cast<std::size_t>(group);
  const Impl::Groups::Table& table = groups.tables_of(s->id)[g];
  const std::int64_t tokens = groups.tokens_in(groups.list[g], s->id, s->length);
  const auto filled = static_cast<std::int32_t>(
      std::min<std::int64_t>(groups.blocks_for(groups.list[g], tokens), table.tree.num_entries));
  return {.num_tokens = static_cast<std::int32_t>(filled == 0 ? 0 : tokens),
          .num_blocks = filled,
          .first_changed = std::min(filled, std::max(table.mirrored, table.first_held)),
          .first_kept = std::min(filled, table.first_held)};
}

/// An encoder's blocks come with the first append, all at once. Blocks that an append which is not
/// settled will release still count.
Result<std::int64_t> BlockTables::kept_after(SequenceId id, std::int32_t group,
                                             std::int64_t num_new) const noexcept {
  const Impl& t = *impl_;
  const Sequence* const s = t.sequences.find(id);
  if (s == nullptr || !t.groups) return not_found(Resource::sequence, id.value);
  const Impl::Groups& groups = *t.groups;
  const auto g = static_cast<std::size_t>(group);
  const std::int64_t tokens = groups.tokens_in(groups.list[g], id, s->length + num_new);
  const std::int64_t blocks = groups.blocks_for(groups.list[g], tokens);
  return std::max<std::int64_t>(0, blocks - groups.tables_of(id)[g].first_held);
}

void BlockTables::copy_entries(std::int32_t slot, std::int32_t group, std::int32_t first,
                               std::span<BlockId> out) const noexcept {
  Impl& t = *impl_;
  const Sequence* const s = t.sequences.at(slot);
  if (s == nullptr || !t.groups) return;
  const Impl::Groups& groups = *t.groups;
  const auto g = static_cast<std::size_t>(group);
  const Impl::Groups::Table& table = groups.tables_of(s->id)[g];
  const auto end = first + static_cast<std::int32_t>(out.size());
  BlockId* to = out.data();
  for (std::int32_t i = first; i < end;) {
    const std::int32_t place = i & kPageMask;
    const std::int32_t run = std::min(kPageEntries - place, end - i);
    const BlockId* const from =
        std::as_const(t.pages).ids(table.tree.leaf_page(t.pages, i >> kPageShift)) + place;
    to = std::transform(from, from + run, to,
                        [&](BlockId id) { return groups.table_id(groups.list[g], id); });
    i += run;
  }
}

void BlockTables::set_mirrored(std::int32_t slot, std::int32_t group,
                               std::int32_t blocks) noexcept {
  Impl& t = *impl_;
  Sequence* const s = t.sequences.at(slot);
  if (s == nullptr || !t.groups) return;
  t.groups->set_mirrored(*s, static_cast<std::size_t>(group), blocks);
}

void BlockTables::unmirror(std::int32_t slot, std::int32_t group, std::int32_t blocks) noexcept {
  Impl& t = *impl_;
  Sequence* const s = t.sequences.at(slot);
  if (s == nullptr || !t.groups) return;
  const auto g = static_cast<std::size_t>(group);
  t.groups->set_mirrored(*s, g, std::min(blocks, t.groups->tables_of(s->id)[g].mirrored));
}

}  // namespace kvarena
