// States of recurrent layers: which of them a sequence holds, forks, cuts and proofs.

#include "blocktable/state_tables.hpp"

#include "base/range_checks.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxParts = 4096;
constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

/// The parts of all groups of states, and the states that a sequence has at most in a step.
struct StateSizes {
  std::int64_t groups = 0;
  std::int64_t parts = 0;
  std::int64_t versions = 0;
  std::int64_t outputs = 0;  // bytes
  std::int64_t most_rollback = 0;
};

/// The extras of a step: rollback states of rows, and marks.
std::int64_t most_extras(const TableGroup& group, const BlockTablesOptions& o) noexcept {
  const std::int64_t of_rollback = std::min(
      o.max_append_tokens, std::int64_t{o.max_sequences} * group.rollback_tokens);
  if (o.checkpoint_every_tokens == 0) return of_rollback;
  return of_rollback + o.max_append_tokens / o.checkpoint_every_tokens + o.max_sequences;
}

StateSizes sizes_of(const BlockTablesOptions& o) noexcept {
  constexpr auto kSlot = static_cast<std::int64_t>(sizeof(std::int32_t));
  StateSizes sizes;
  for (const TableGroup& group : o.groups) {
    if (group.kind != PagedKind::state) continue;
    ++sizes.groups;
    sizes.parts += group.num_parts;
    sizes.versions += 2 * (std::int64_t{group.rollback_tokens} + 1);
    sizes.outputs += kSlot * (2 * o.max_sequences * group.num_parts + o.max_sequences + 1 +
                              most_extras(group, o) * (group.num_parts + 1));
    sizes.most_rollback = std::max<std::int64_t>(sizes.most_rollback, group.rollback_tokens);
  }
  return sizes;
}

std::int64_t num_records(std::int64_t num_blocks, std::int64_t parts) noexcept {
  return std::clamp<std::int64_t>(num_blocks / std::max<std::int64_t>(parts, 1), 1, kMaxTokens);
}

Status violated(std::uint64_t subject, std::int64_t expected, std::int64_t found) noexcept {
  return {StatusCode::invariant_violated,
          Resource::sequence,
          Option::none,
          static_cast<std::int32_t>(Invariant::sequence_length),
          subject,
          static_cast<std::uint64_t>(expected),
          static_cast<std::uint64_t>(found)};
}

}  // namespace

bool BlockTables::Impl::Groups::States::any_of(std::span<const TableGroup> groups) noexcept {
  return std::ranges::find(groups, PagedKind::state, &TableGroup::kind) != groups.end();
}

Status BlockTables::Impl::Groups::States::check(const BlockTablesOptions& options) noexcept {
  if (!any_of(options.groups)) return {};
  const std::int64_t every = options.checkpoint_every_tokens;
  if (Status s = check_option(Option::checkpoint_every_tokens, every, 0, kMaxTokens); !s) return s;
  for (const TableGroup& group : options.groups) {
    if (group.kind == PagedKind::state) {
      if (Status s = check_option(Option::num_parts, group.num_parts, 1, kMaxParts); !s) return s;
      if (Status s = check_enum(Option::mode, group.mode, StateMode::read_write); !s) return s;
      continue;
    }
    const std::int64_t beyond = every % group.block_size_tokens;
    if (group.kind == PagedKind::cross || beyond == 0) continue;
    return invalid_option(Option::checkpoint_every_tokens, every, every - beyond,
                          every - beyond + group.block_size_tokens);
  }
  return {};
}

std::int64_t BlockTables::Impl::Groups::States::host_bytes(
    std::int64_t num_blocks, const BlockTablesOptions& options) noexcept {
  if (!any_of(options.groups)) return 0;
  const StateSizes sizes = sizes_of(options);
  const std::int64_t of_sequence =
      sizes.groups * static_cast<std::int64_t>(sizeof(Held)) +
      sizes.versions * static_cast<std::int64_t>(sizeof(Version)) +
      sizes.parts * static_cast<std::int64_t>(sizeof(std::int32_t) + sizeof(BlockCopy) +
                                              sizeof(std::int32_t));
  return options.max_sequences * of_sequence + sizes.outputs +
         (sizes.most_rollback + 1) * static_cast<std::int64_t>(sizeof(std::int64_t)) +
         CheckpointList::bytes(num_records(num_blocks, sizes.parts), options.max_sequences,
                               sizes.parts);
}

BlockTables::Impl::Groups::States::States(Groups& its_groups, const BlockTablesOptions& options)
    : groups(its_groups),
      t(its_groups.t),
      every(options.checkpoint_every_tokens),
      checkpoints(num_records(its_groups.t.manager->num_blocks(), sizes_of(options).parts),
                  options.max_sequences, sizes_of(options).parts) {
  const StateSizes sizes = sizes_of(options);
  const auto rows = static_cast<std::size_t>(options.max_sequences);
  parts_of_all = sizes.parts;
  max_versions = static_cast<std::size_t>(sizes.versions);
  held = LazyArray<Held>(rows * static_cast<std::size_t>(sizes.groups));
  versions = LazyArray<Version>(rows * max_versions);
  present = LazyArray<std::int32_t>(rows * static_cast<std::size_t>(sizes.parts));
  targets = LazyArray<std::int64_t>(static_cast<std::size_t>(sizes.most_rollback) + 1);
  std::size_t first_part = 0;
  std::size_t first_version = 0;
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const TableGroup& spec = options.groups[g];
    if (spec.kind != PagedKind::state) continue;
    list.push_back({.group = g,
                    .parts = spec.num_parts,
                    .rollback = spec.rollback_tokens,
                    .is_in_place = spec.mode == StateMode::in_place,
                    .keeps = options.can_undo && spec.keeps_for_undo,
                    .first_part = first_part,
                    .first_version = first_version});
    const auto parts = static_cast<std::size_t>(spec.num_parts);
    first_part += parts;
    first_version += 2 * (static_cast<std::size_t>(spec.rollback_tokens) + 1);
    const auto extras = static_cast<std::size_t>(most_extras(spec, options));
    outputs.push_back({.read = LazyArray<std::int32_t>(rows * parts),
                       .write = LazyArray<std::int32_t>(rows * parts),
                       .extra_offsets = LazyArray<std::int32_t>(rows + 1),
                       .extra_tokens = LazyArray<std::int32_t>(extras),
                       .extra_slots = LazyArray<std::int32_t>(extras * parts)});
  }
  slots.resize(list.size());
  wanted_marks.resize(list.size());
}

const BlockTables::Impl::Groups::States::Of* BlockTables::Impl::Groups::States::find(
    std::size_t group) const noexcept {
  const auto found = std::ranges::find(list, group, &Of::group);
  return found == list.end() ? nullptr : &*found;
}

// ---- what a sequence has -----------------------------------------------------------------------

void BlockTables::Impl::Groups::States::begin(SequenceId id) noexcept {
  for (const Of& of : list) {
    held_of(id, of) = {};
    std::fill_n(present_of(id, of), of.parts, kNoBlock.value);
  }
  checkpoints.begin(Groups::slot_of(id));
}

std::optional<std::int64_t> BlockTables::Impl::Groups::States::entry_of(
    SequenceId id, const Of& of, std::int64_t length) const noexcept {
  const std::span<const Version> its = versions_of(id, of);
  for (std::size_t i = its.size(); i-- > 0;) {
    if (its[i].length == length) return static_cast<std::int64_t>(i) * of.parts;
  }
  return std::nullopt;
}

std::optional<std::int64_t> BlockTables::Impl::Groups::States::entry_with_marks(
    SequenceId id, const Of& of, std::int64_t length) const noexcept {
  if (const auto entry = entry_of(id, of, length)) return entry;
  const Held& h = held_of(id, of);
  if (h.num_marks == 0 || length < h.first_mark || length % every != 0) return std::nullopt;
  const std::int64_t mark = (length - h.first_mark) / every;
  if (mark >= h.num_marks) return std::nullopt;
  return (h.num_versions + mark) * of.parts;
}

bool BlockTables::Impl::Groups::States::has_all(SequenceId id,
                                                std::int64_t length) const noexcept {
  return std::ranges::all_of(
      list, [&](const Of& of) { return entry_of(id, of, length).has_value(); });
}

/// The longest length at which all states and all other blocks can be had. Lengths without a state
/// cannot, so those with one are tried.
std::int64_t BlockTables::Impl::Groups::States::restorable(SequenceId id,
                                                           std::int64_t length) const noexcept {
  std::int64_t longest = 0;
  const auto attempt = [&](std::int64_t at, bool has_states) {
    if (at <= longest || at > length || !has_states) return;
    if (groups.restorable_tokens(groups.tables_of(id), at) == at) longest = at;
  };
  for (const Version& version : versions_of(id, list[0])) {
    attempt(version.length, has_all(id, version.length));
  }
  const std::size_t slot = Groups::slot_of(id);
  for (std::int32_t r = checkpoints.first(slot); r != CheckpointList::kNone;
       r = checkpoints.next(r)) {
    const std::int64_t at = checkpoints.length(r);
    if (at > longest && at <= length) attempt(at, is_live(r));
  }
  return longest;
}

BlockId BlockTables::Impl::Groups::States::table_id_at(const Of& of, const Table& table,
                                                       std::int64_t entry) const noexcept {
  return groups.table_id(groups.list[of.group],
                         table.tree.id_at(std::as_const(t.pages), static_cast<std::int32_t>(entry)));
}

void BlockTables::Impl::Groups::States::write_slots(const Of& of, const Table& table,
                                                    std::int64_t first,
                                                    std::int32_t* out) const noexcept {
  for (std::int64_t part = 0; part < of.parts; ++part) {
    *out++ = table_id_at(of, table, first + part).value;
  }
}

void BlockTables::Impl::Groups::States::place(const Sequence& s) noexcept {
  for (const Of& of : list) {
    Table& table = table_of(s.id, of);
    const std::optional<std::int64_t> entry = entry_of(s.id, of, s.length);
    std::int32_t* const out = present_of(s.id, of);
    if (s.length > 0 && entry) {
      write_slots(of, table, *entry, out);
    } else {
      std::fill_n(out, of.parts, kNoBlock.value);
    }
    table.room = room_of(s, of, s.length);
  }
}

// ---- references --------------------------------------------------------------------------------

Status BlockTables::Impl::Groups::States::adopt(Sequence& s, const Of& of, std::int64_t length,
                                                std::span<const BlockId> ids,
                                                std::span<const Generation> generations) {
  if (Status status = t.manager->retain(s.holder, ids, generations); !status) return status;
  Held& h = held_of(s.id, of);
  groups.add_blocks(table_of(s.id, of), of.group, ids.data(), generations.data(), std::ssize(ids));
  const auto at = static_cast<std::int32_t>(length);
  ++h.num_versions;
  versions_of(s.id, of).back() = {.length = at, .was = at};
  return {};
}

void BlockTables::Impl::Groups::States::note_first(SequenceId id, std::int64_t length) noexcept {
  if (length == 0) return;
  const auto at = static_cast<std::int32_t>(length);
  for (const Of& of : list) {
    held_of(id, of) = {.num_versions = 1};
    versions_of(id, of)[0] = {.length = at, .was = at};
  }
}

Status BlockTables::Impl::Groups::States::share(SequenceId parent, Sequence& child,
                                                std::int64_t length) {
  if (length == 0) return {};
  const std::int32_t record = has_all(parent, length) ? CheckpointList::kNone
                                                      : live_record(parent, length);
  std::array<BlockId, kMaxParts> ids;
  std::array<Generation, kMaxParts> generations;
  for (const Of& of : list) {
    const auto parts = static_cast<std::size_t>(of.parts);
    if (record != CheckpointList::kNone) {
      std::ranges::copy(ids_of(record, of), ids.begin());
      std::ranges::copy(generations_of(record, of), generations.begin());
    } else {
      const PageTree& tree = table_of(parent, of).tree;
      const auto first = static_cast<std::int32_t>(*entry_of(parent, of, length));
      for (std::size_t part = 0; part < parts; ++part) {
        const std::int32_t entry = first + static_cast<std::int32_t>(part);
        ids[part] = tree.id_at(t.pages, entry);
        generations[part] = tree.generation_at(t.pages, entry);
      }
    }
    if (Status s = adopt(child, of, length, std::span(ids.data(), parts),
                         std::span(generations.data(), parts));
        !s) {
      return s;
    }
  }
  return {};
}

Status BlockTables::Impl::Groups::States::share_with_pin(const Sequence& s, const Of& of,
                                                         HolderId holder, Table& to,
                                                         std::int64_t count) {
  if (count == 0) return {};
  const PageTree& tree = table_of(s.id, of).tree;
  const std::int64_t first = *entry_of(s.id, of, s.length);
  for (std::int64_t part = 0; part < count; ++part) {
    const auto entry = static_cast<std::int32_t>(first + part);
    const BlockId id = tree.id_at(t.pages, entry);
    const Generation generation = tree.generation_at(t.pages, entry);
    const std::span<const Generation> generations(&generation, 1);
    if (Status e = t.manager->retain(holder, std::span(&id, 1), generations); !e) return e;
    groups.add_blocks(to, of.group, &id, &generation, 1);
  }
  return {};
}

/// Releases `count` entries from `first` on, last first, and closes the gap.
Status BlockTables::Impl::Groups::States::erase(const Sequence& s, const Of& of,
                                                std::int64_t first, std::int64_t count,
                                                Ticket ticket) {
  std::array<BlockId, kPageEntries> ids;
  std::array<Generation, kPageEntries> generations;
  PageTree& tree = table_of(s.id, of).tree;
  for (std::int64_t end = first + count; end > first;) {
    const std::int64_t run = std::min<std::int64_t>(kPageEntries, end - first);
    for (std::int64_t i = 0; i < run; ++i) {
      const auto entry = static_cast<std::int32_t>(end - 1 - i);
      ids[static_cast<std::size_t>(i)] = tree.id_at(t.pages, entry);
      generations[static_cast<std::size_t>(i)] = tree.generation_at(t.pages, entry);
    }
    const std::span<const BlockId> last_first(ids.data(), static_cast<std::size_t>(run));
    const std::span<const Generation> their(generations.data(), last_first.size());
    const Status status = ticket == kNoTicket
                              ? t.manager->release(s.holder, last_first, their)
                              : t.manager->release_after(ticket, s.holder, last_first, their);
    if (!status) return status;
    end -= run;
  }
  for (std::int64_t from = first + count; from < tree.num_entries; ++from) {
    const auto to = static_cast<std::int32_t>(from - count);
    tree.id_at(t.pages, to) = tree.id_at(t.pages, static_cast<std::int32_t>(from));
    tree.generation_at(t.pages, to) = tree.generation_at(t.pages, static_cast<std::int32_t>(from));
  }
  for (std::int64_t left = count; left > 0;) {
    const std::int64_t run = std::min<std::int64_t>(left, tree.on_last_leaf());
    tree.remove_last(t.pages, static_cast<std::int32_t>(run));
    left -= run;
  }
  t.entries -= count;
  return {};
}

/// Keeps the states up to `length`. Where only a checkpoint has it, that becomes the only state; its
/// blocks are retained before any other is released. The caller has checked the ticket.
Status BlockTables::Impl::Groups::States::cut(Sequence& s, std::int64_t length, Ticket ticket) {
  const bool uses_checkpoint = length > 0 && !has_all(s.id, length);
  if (uses_checkpoint) {
    const std::int32_t record = live_record(s.id, length);
    std::int64_t needed = 0;
    for (const Of& of : list) {
      const std::int64_t entries = table_of(s.id, of).tree.num_entries;
      needed += PageTree::pages_for(entries + of.parts) - PageTree::pages_for(entries);
    }
    if (needed > t.pages.available()) {
      return exhausted(Resource::table_page, static_cast<std::uint64_t>(needed),
                       static_cast<std::uint64_t>(t.pages.available()), s.id.value,
                       Option::max_table_pages);
    }
    // All parts of all groups in one call, so that a refusal changes nothing.
    if (Status status = t.manager->retain(s.holder, checkpoints.ids(record),
                                          checkpoints.generations(record));
        !status) {
      return status;
    }
    for (const Of& of : list) {
      groups.add_blocks(table_of(s.id, of), of.group, ids_of(record, of).data(),
                        generations_of(record, of).data(), of.parts);
    }
  }
  for (const Of& of : list) {
    Held& h = held_of(s.id, of);
    const std::span<Version> its = versions_of(s.id, of);
    std::int64_t marks = h.num_marks;
    while (marks > 0 && h.first_mark + (marks - 1) * every > length) --marks;
    if (uses_checkpoint) marks = 0;
    if (marks < h.num_marks) {
      if (Status status = erase(s, of, (h.num_versions + marks) * of.parts,
                                (h.num_marks - marks) * of.parts, ticket);
          !status) {
        return status;
      }
      h.num_marks = static_cast<std::int32_t>(marks);
    }
    for (std::size_t i = its.size(); i-- > 0;) {
      if (!uses_checkpoint && its[i].length <= length && length > 0) continue;
      if (Status status =
              erase(s, of, static_cast<std::int64_t>(i) * of.parts, of.parts, ticket);
          !status) {
        return status;
      }
      std::copy(its.begin() + static_cast<std::ptrdiff_t>(i) + 1, its.begin() + h.num_versions,
                its.begin() + static_cast<std::ptrdiff_t>(i));
      --h.num_versions;
    }
    if (!uses_checkpoint) continue;
    h.num_versions = 1;
    versions_of(s.id, of)[0] = {.length = static_cast<std::int32_t>(length),
                                .was = static_cast<std::int32_t>(length)};
  }
  checkpoints.drop_after(Groups::slot_of(s.id), static_cast<std::int32_t>(length));
  return {};
}

/// The states of a sequence are those that its length calls for.
Status BlockTables::Impl::Groups::States::check_sequence(SequenceId id, const Sequence& s,
                                                         const Of& of) const {
  const Held& h = held_of(id, of);
  const Table& table = table_of(id, of);
  const std::int64_t states = h.num_versions + h.num_marks;
  if (states * of.parts != table.tree.num_entries) {
    return violated(id.value, states * of.parts, table.tree.num_entries);
  }
  if (!groups.is_settled) return {};
  if (h.num_marks != 0) return violated(id.value, 0, h.num_marks);
  if (h.num_versions > of.rollback + 1) {
    return violated(id.value, of.rollback + 1, h.num_versions);
  }
  const std::span<const Version> its = versions_of(id, of);
  for (std::size_t i = 0; i < its.size(); ++i) {
    const bool is_kept = its[i].length <= s.length && its[i].length >= s.length - of.rollback;
    const bool is_twice = std::ranges::count(its, its[i].length, &Version::length) != 1;
    if (!is_kept || is_twice || its[i].length < 1) {
      return violated(id.value, s.length, its[i].length);
    }
  }
  return {};
}

}  // namespace kvarena
