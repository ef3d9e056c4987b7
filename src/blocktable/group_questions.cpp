// Questions about tables with groups: figures, copies, views, invariants.

#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

Status violated(Invariant invariant, Resource resource, std::uint64_t subject,
                std::int64_t expected, std::int64_t found) noexcept {
  return {StatusCode::invariant_violated,       resource, Option::none,
          static_cast<std::int32_t>(invariant), subject,  static_cast<std::uint64_t>(expected),
          static_cast<std::uint64_t>(found)};
}

}  // namespace

SequenceInfo BlockTables::Impl::Groups::info(SequenceId id, const Sequence& s) const {
  SequenceInfo info{.length_tokens = s.length,
                    .max_length_tokens =
                        s.max_length == std::numeric_limits<std::int32_t>::max() ? 0 : s.max_length,
                    .holder = s.holder,
                    .owner = t.owners[slot_of(id)],
                    .import_state = s.import_state,
                    .cross_tokens = cross_tokens[slot_of(id)],
                    .known_tokens = t.chain_of(id).known,
                    .registered_blocks = t.chain_of(id).blocks,
                    .published_blocks = t.chain_of(id).published};
  const std::span<const Table> its = tables_of(id);
  for (std::size_t g = 0; g < size(); ++g) {
    info.num_blocks += its[g].num_held();
    if (!list[g].grows()) continue;
    info.waste_tokens += its[g].tree.num_entries * list[g].block_size - s.length;
  }
  return info;
}

Result<BlockId> BlockTables::Impl::Groups::lookup(SequenceId id, std::int64_t index,
                                                  std::int32_t group) const {
  const Table& table = tables_of(id)[static_cast<std::size_t>(group)];
  if (index < 0 || index >= table.tree.num_entries) {
    return invalid_argument(Resource::block_index, index, 0, table.tree.num_entries - 1);
  }
  if (index < table.first_held) return kNoBlock;
  return table.tree.id_at(std::as_const(t.pages), static_cast<std::int32_t>(index));
}

Result<std::int64_t> BlockTables::Impl::Groups::slot_of(SequenceId id, std::int64_t index,
                                                        std::int32_t group) const {
  const auto g = static_cast<std::size_t>(group);
  const std::int64_t tokens = tokens_in(list[g], id, t.sequences.find(id)->length);
  const Table& table = tables_of(id)[g];
  if (list[g].is_state && index >= 0 && index < tokens) return -1;
  const std::int64_t block = index / list[g].block_size;
  if (index < 0 || index >= tokens || block >= table.tree.num_entries) {
    return invalid_argument(Resource::token_index, index, 0, tokens - 1);
  }
  if (block < table.first_held) return -1;
  const BlockId found = table.tree.id_at(std::as_const(t.pages), static_cast<std::int32_t>(block));
  return table_id(list[g], found).value * list[g].block_size + index % list[g].block_size;
}

/// Absent entries are kNoBlock, also where their page was given back.
Result<std::int64_t> BlockTables::Impl::Groups::copy_blocks(const Table& table,
                                                            std::span<BlockId> out) const {
  const std::int64_t count = table.tree.num_entries;
  if (std::ssize(out) < count) {
    return invalid_argument(Resource::span_size, std::ssize(out), count,
                            std::numeric_limits<std::int32_t>::max());
  }
  std::fill_n(out.begin(), table.first_held, kNoBlock);
  std::int64_t next = table.first_held;
  for_each_run(table, [&](std::span<const BlockId> ids) {
    std::copy(ids.begin(), ids.end(), out.begin() + next);
    next += std::ssize(ids);
  });
  return count;
}

std::span<const std::int32_t> BlockTables::Impl::Groups::present_state(
    SequenceId id, std::size_t group) const noexcept {
  const States::Of& of = *states->find(group);
  const std::int32_t* const first = states->present_of(id, of);
  const bool is_there = *first != kNoBlock.value;
  return {first, is_there ? static_cast<std::size_t>(of.parts) : 0};
}

/// Checks every row before it writes any.
Status BlockTables::Impl::Groups::copy_rows(std::span<const SequenceId> ids,
                                            std::span<std::int32_t> out, std::int64_t stride,
                                            std::span<std::int32_t> lengths,
                                            std::int32_t group) const {
  if (Status s = check_group(group); !s) return s;
  const auto g = static_cast<std::size_t>(group);
  const auto filled_of = [&](SequenceId id) {
    const std::int64_t tokens = tokens_in(list[g], id, t.sequences.find(id)->length);
    if (list[g].is_state) return std::ssize(present_state(id, g));
    return filled_blocks(list[g], tables_of(id)[g], tokens);
  };
  std::int64_t longest = 0;
  for (const SequenceId id : ids) {
    if (t.sequences.find(id) == nullptr) return not_found(Resource::sequence, id.value);
    longest = std::max(longest, filled_of(id));
  }
  if (stride < longest) return invalid_argument(Resource::span_size, stride, longest, kMost);
  const std::int64_t rows = std::ssize(ids);
  if (rows > 0 && std::ssize(out) / rows < stride) {
    return invalid_argument(Resource::span_size, std::ssize(out), rows * stride, kMost);
  }
  if (!lengths.empty() && std::ssize(lengths) < rows) {
    return invalid_argument(Resource::span_size, std::ssize(lengths), rows, kMost);
  }
  for (std::int64_t row = 0; row < rows; ++row) {
    const SequenceId id = ids[static_cast<std::size_t>(row)];
    const Table& table = tables_of(id)[g];
    std::int32_t* const to = out.data() + row * stride;
    std::fill_n(to, stride, kNoBlock.value);
    const std::int64_t filled = filled_of(id);
    if (list[g].is_state) {
      std::ranges::copy(present_state(id, g), to);
    }
    for (std::int32_t i = table.first_held; i < filled && !list[g].is_state; ++i) {
      to[i] = table_id(list[g], table.tree.id_at(std::as_const(t.pages), i)).value;
    }
    if (lengths.empty()) continue;
    lengths[static_cast<std::size_t>(row)] =
        static_cast<std::int32_t>(tokens_in(list[g], id, t.sequences.find(id)->length));
  }
  return {};
}

/// Rows have their kept blocks only: the offset of a row is that of block 0, as if it were there.
Result<BatchView> BlockTables::Impl::Groups::view(std::span<const SequenceId> ids,
                                                  std::int32_t group) {
  if (Status s = check_group(group); !s) return s;
  const auto g = static_cast<std::size_t>(group);
  ++t.calls;
  std::int64_t next = 0;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    Sequence* s = t.sequences.find(ids[row]);
    if (s == nullptr) return not_found(Resource::sequence, ids[row].value);
    if (std::exchange(s->call_stamp, t.calls) == t.calls) {
      return duplicate_argument(Resource::sequence, ids[row].value);
    }
    const Table& table = tables_of(ids[row])[g];
    const std::int64_t tokens = tokens_in(list[g], ids[row], s->length);
    const std::span<const std::int32_t> state =
        list[g].is_state ? present_state(ids[row], g) : std::span<const std::int32_t>();
    const std::int64_t filled =
        list[g].is_state ? std::ssize(state) : filled_blocks(list[g], table, tokens);
    t.view_row_offsets[row] = next - table.first_held;
    t.view_lengths[row] = static_cast<std::int32_t>(filled == 0 ? 0 : tokens);
    t.view_num_blocks[row] = static_cast<std::int32_t>(filled);
    for (const std::int32_t id : state) {
      view_entries[static_cast<std::size_t>(next++)] = BlockId(id);
    }
    std::int64_t index = list[g].is_state ? filled : table.first_held;
    for_each_run(table, [&](std::span<const BlockId> blocks) {
      for (const BlockId id : blocks) {
        if (index++ >= filled) break;
        view_entries[static_cast<std::size_t>(next++)] = table_id(list[g], id);
      }
    });
  }
  const auto num_rows = static_cast<std::int32_t>(ids.size());
  return BatchView{.tables = {.entries = view_entries.data(),
                              .pages = nullptr,
                              .row_offsets = t.view_row_offsets.data(),
                              .page_shift = 0,
                              .num_rows = num_rows},
                   .seq_lens = t.view_lengths.data(),
                   .num_blocks = t.view_num_blocks.data(),
                   .num_rows = num_rows};
}

// ---- proofs ------------------------------------------------------------------------------------

/// Marks the pages of a tree. Returns false when a page is out of range or marked already. The
/// pages of absent entries are not there.
bool BlockTables::Impl::Groups::mark_pages(std::int32_t page, std::int32_t level,
                                           std::int32_t leaves, std::vector<bool>& marked) const {
  if (level == 0 && page == TablePages::kNoPage) return true;
  if (page < 0 || page >= t.pages.num_pages() || marked[static_cast<std::size_t>(page)]) {
    return false;
  }
  marked[static_cast<std::size_t>(page)] = true;
  if (level == 0) return true;
  const std::int32_t below = std::int32_t{1} << (kPageShift * (level - 1));
  for (std::int32_t child = 0; child * below < leaves; ++child) {
    const std::int32_t left = std::min(below, leaves - child * below);
    if (!mark_pages(std::as_const(t.pages).ids(page)[child].value, level - 1, left, marked)) {
      return false;
    }
  }
  return true;
}

/// Checks that every entry is a held block of this group, and that absent ones say so.
Status BlockTables::Impl::Groups::check_table(std::size_t group, const Table& table,
                                              Resource resource, std::uint64_t subject) const {
  for (std::int32_t i = 0; i < table.tree.num_entries; ++i) {
    const std::int32_t leaf = table.tree.leaf_page(t.pages, i >> kPageShift);
    if (leaf == TablePages::kNoPage) {
      if (i < table.first_held) continue;
      return violated(Invariant::table_entries, resource, subject, i, kNoBlock.value);
    }
    const BlockId block = std::as_const(t.pages).ids(leaf)[i & kPageMask];
    if (i < table.first_held) {
      if (block == kNoBlock) continue;
      return violated(Invariant::table_entries, resource, subject, i, block.value);
    }
    const bool exists = block.value >= 0 && block.value < t.manager->num_blocks();
    if (!exists || t.manager->place_of(block).group != static_cast<std::int32_t>(group) ||
        t.manager->reference_count(block) == 0 ||
        t.manager->generation(block) != t.pages.generations(leaf)[i & kPageMask]) {
      return violated(Invariant::table_entries, resource, subject, i, block.value);
    }
  }
  return {};
}

/// Checks what an append within the room relies on.
Status BlockTables::Impl::Groups::check_room(const Sequence& s) const {
  if (s.room == 0) return {};
  const Room room = room_of(s);
  if (room.tokens != s.room || room.num_behind != s.num_behind) {
    return violated(Invariant::sequence_length, Resource::sequence, s.id.value, room.tokens,
                    s.room);
  }
  for (const std::uint32_t g : growing) {
    const Table& table = tables_of(s.id)[g];
    const auto index = static_cast<std::int32_t>((s.length - 1) / list[g].block_size);
    const BlockId id = table_id(list[g], table.tree.id_at(std::as_const(t.pages), index));
    const std::int64_t base = (id.value - index) * list[g].block_size;
    const std::int64_t known = slot_bases[slot_of(s.id) * size() + g];
    if (known == base) continue;
    return violated(Invariant::sequence_length, Resource::sequence, s.id.value, base, known);
  }
  return {};
}

/// Checks the length against the blocks of each group: none that a later token reads is missing,
/// and after a step none is kept that no token reads.
Status BlockTables::Impl::Groups::check_sequence(SequenceId id, const Sequence& s) const {
  const std::span<const Table> its = tables_of(id);
  std::int64_t held = num_kept_of(id);
  for (std::size_t g = 0; g < size(); ++g) {
    const Group& group = list[g];
    const Table& table = its[g];
    held += table.num_held();
    if (Status e = check_table(g, table, Resource::sequence, id.value); !e) return e;
    const std::int64_t first_token = table.first_held * group.block_size;
    if (group.is_state) {
      if (Status e = states->check_sequence(id, s, *states->find(g)); !e) return e;
      continue;
    }
    if (group.is_cross) {
      if (table.first_held == 0) continue;
      return violated(Invariant::sequence_length, Resource::sequence, id.value, 0, first_token);
    }
    if (s.length > table.tree.num_entries * group.block_size) {
      return violated(Invariant::sequence_length, Resource::sequence, id.value, s.length,
                      table.tree.num_entries * group.block_size);
    }
    const std::int64_t needed = oldest_needed(group.retention, s.length);
    const std::int64_t oldest = s.length == 0 ? 0 : group.first_kept(s.length) * group.block_size;
    const bool lacks = first_token > needed;
    if (lacks || (is_settled && first_token < oldest)) {
      return violated(Invariant::sequence_length, Resource::sequence, id.value,
                      lacks ? needed : oldest, first_token);
    }
  }
  if (Status e = check_room(s); !e) return e;
  const Result<HolderReport> holder = t.manager->holder(s.holder);
  if (holder && holder->references == held) return {};
  return violated(Invariant::table_counts, Resource::sequence, id.value, held,
                  holder ? holder->references : -1);
}

/// A page of entries that is marked twice has two owners.
Status BlockTables::Impl::Groups::check_invariants() const try {
  std::vector<bool> marked(static_cast<std::size_t>(t.pages.num_pages()));
  std::int64_t tokens = 0;
  std::int64_t entries = 0;
  std::int64_t pinned = 0;
  Status first;
  const auto is_whole = [&](std::span<const Table> its, std::int64_t& held) {
    return std::ranges::all_of(its, [&](const Table& table) {
      held += table.num_held();
      return table.tree.num_entries == 0 ||
             mark_pages(table.tree.root, table.tree.depth, table.tree.num_leaves(), marked);
    });
  };
  t.sequences.for_each([&](SequenceId id, const Sequence& s) {
    if (!first) return;
    tokens += s.length;
    first = is_whole(tables_of(id), entries)
                ? check_sequence(id, s)
                : violated(Invariant::table_pages, Resource::sequence, id.value, 1, 0);
  });
  t.pins.for_each([&](SequenceId number, const Sequence& pin) {
    if (!first) return;
    const std::span<const Table> its = tables_of_pin(number);
    if (!is_whole(its, pinned)) {
      first = violated(Invariant::table_pages, Resource::holder, pin.holder.value, 1, 0);
    }
    for (std::size_t g = 0; g < size() && first; ++g) {
      first = check_table(g, its[g], Resource::holder, pin.holder.value);
    }
  });
  if (!first) return first;
  const auto used = std::count(marked.begin(), marked.end(), true);
  if (used != t.pages.used()) {
    return violated(Invariant::table_pages, Resource::table_page, 0, t.pages.used(), used);
  }
  if (pinned != t.pinned_entries) {
    return violated(Invariant::table_counts, Resource::holder, 0, t.pinned_entries, pinned);
  }
  if (tokens != t.tokens || entries != t.entries) {
    return violated(Invariant::table_counts, Resource::num_tokens, 0, t.tokens, tokens);
  }
  return t.check_prefix();
} catch (const std::bad_alloc&) {
  return exhausted(Resource::host_memory, static_cast<std::uint64_t>(t.pages.num_pages()), 0);
}

}  // namespace kvarena
