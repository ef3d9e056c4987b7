// States of recurrent layers: which of them a sequence holds, forks, cuts and proofs.

#include "blocktable/state_tables.hpp"

#include "base/range_checks.hpp"
#include "blocktable/state_extras.hpp"

#include <algorithm>

namespace kvarena {
namespace {

/// The parts of all groups of states, and the states that a sequence has at most in a step.
struct StateSizes {
  std::int64_t groups = 0;
  std::int64_t parts = 0;
  std::int64_t versions = 0;
  std::int64_t outputs = 0;  // bytes
  std::int64_t most_rollback = 0;
};

std::int64_t most_extras(const TableGroup& group, const BlockTablesOptions& o) noexcept {
  return kvarena::most_extras(group.rollback_tokens, o.max_sequences, o.max_append_tokens,
                              o.checkpoint_every_tokens);
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

Status check_states(std::span<const TableGroup> groups, std::int64_t every) noexcept {
  if (std::ranges::find(groups, PagedKind::state, &TableGroup::kind) == groups.end()) return {};
  if (Status s = check_option(Option::checkpoint_every_tokens, every, 0, kMaxTokens); !s) return s;
  for (const TableGroup& group : groups) {
    if (group.kind == PagedKind::state) {
      if (Status s =
              check_option(Option::num_parts, group.num_parts, 1, std::int64_t{kMaxStateParts});
          !s)
        return s;
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

bool BlockTables::Impl::Groups::States::any_of(std::span<const TableGroup> groups) noexcept {
  return std::ranges::find(groups, PagedKind::state, &TableGroup::kind) != groups.end();
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
  return options.max_sequences *
             (of_sequence + static_cast<std::int64_t>(sizeof(Asked) + 2 * sizeof(std::uint64_t))) +
         sizes.outputs +
         (sizes.most_rollback + 1) * static_cast<std::int64_t>(sizeof(std::int64_t)) +
         CheckpointList::bytes(num_records(num_blocks, sizes.parts), options.max_sequences,
                               sizes.parts);
}

BlockTables::Impl::Groups::States::States(Groups& its_groups, const BlockTablesOptions& options)
    : groups(its_groups),
      t(its_groups.t),
      every(options.checkpoint_every_tokens),
      asked(static_cast<std::size_t>(options.max_sequences)),
      checkpoints(num_records(its_groups.t.manager->num_blocks(), sizes_of(options).parts),
                  options.max_sequences, sizes_of(options).parts) {
  const StateSizes sizes = sizes_of(options);
  const auto rows = static_cast<std::size_t>(options.max_sequences);
  parts_of_all = sizes.parts;
  max_versions = static_cast<std::size_t>(sizes.versions);
  held = LazyArray<Held>(rows * static_cast<std::size_t>(sizes.groups));
  versions = LazyArray<Version>(rows * max_versions);
  present = LazyArray<std::int32_t>(rows * static_cast<std::size_t>(sizes.parts));
  state_numbers = LazyArray<std::uint64_t>(rows);
  row_states = LazyArray<std::uint64_t>(rows);
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
  state_numbers[Groups::slot_of(id)] = ++last_state_number;
  checkpoints.begin(Groups::slot_of(id));
  asked[Groups::slot_of(id)] = {};
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
  std::int64_t mark = h.first_mark;
  for (std::int64_t i = 0; i < h.num_marks && mark <= length; ++i) {
    if (mark == length) return (h.num_versions + i) * of.parts;
    mark = next_mark(id, mark);
  }
  return std::nullopt;
}

bool BlockTables::Impl::Groups::States::has_all(SequenceId id, std::int64_t length) const noexcept {
  return std::ranges::all_of(list,
                             [&](const Of& of) { return entry_of(id, of, length).has_value(); });
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
  return groups.table_id(groups.list[of.group], table.tree.id_at(std::as_const(t.pages),
                                                                 static_cast<std::int32_t>(entry)));
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
    table.fits_until = writes_over_until(s, of);
  }
  state_numbers[Groups::slot_of(s.id)] = ++last_state_number;
}

// ---- proofs ------------------------------------------------------------------------------------

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
