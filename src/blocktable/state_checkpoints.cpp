// Checkpoints: states that stay cached under their generations, and the public calls for them.

#include "base/range_checks.hpp"
#include "blocktable/state_tables.hpp"

#include <algorithm>
#include <limits>

namespace kvarena {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

}  // namespace

bool BlockTables::Impl::Groups::States::is_live(std::int32_t record) const noexcept {
  return t.manager->count_published(checkpoints.ids(record), checkpoints.generations(record)) ==
         parts_of_all;
}

std::int32_t BlockTables::Impl::Groups::States::live_record(SequenceId id,
                                                            std::int64_t length) const noexcept {
  const std::int32_t record =
      checkpoints.find(Groups::slot_of(id), static_cast<std::int32_t>(length));
  return record != CheckpointList::kNone && is_live(record) ? record : CheckpointList::kNone;
}

/// Does nothing when a group lacks the state. The sequence holds the blocks, so publishing them can
/// be refused only where somebody else said that their content failed; there is no checkpoint then.
void BlockTables::Impl::Groups::States::keep_checkpoint(Sequence& s, std::int64_t length) noexcept {
  const bool has_all = std::ranges::all_of(
      list, [&](const Of& of) { return entry_with_marks(s.id, of, length).has_value(); });
  if (!has_all) return;
  const std::int32_t record =
      checkpoints.add(Groups::slot_of(s.id), static_cast<std::int32_t>(length));
  const std::uint64_t claims_before = t.manager->claim_serial();
  for (const Of& of : list) {
    const PageTree& tree = table_of(s.id, of).tree;
    const auto first = static_cast<std::int32_t>(*entry_with_marks(s.id, of, length));
    for (std::int64_t part = 0; part < of.parts; ++part) {
      const std::int32_t entry = first + static_cast<std::int32_t>(part);
      const BlockId id = tree.id_at(t.pages, entry);
      const Generation generation = tree.generation_at(t.pages, entry);
      const std::size_t place = of.first_part + static_cast<std::size_t>(part);
      checkpoints.ids(record)[place] = id;
      checkpoints.generations(record)[place] = generation;
      static_cast<void>(t.manager->set_content(id, generation, BlockContent::published));
    }
  }
  s.claims_seen = 0;  // the next step must not write over them
  t.own_claims += t.manager->claim_serial() - claims_before;
  if (t.prefix != nullptr) groups.attach_state(s, length);
}

Result<std::int64_t> BlockTables::Impl::Groups::States::lengths_of(
    SequenceId id, std::span<std::int64_t> lengths) const {
  std::int64_t count = 0;
  const std::size_t slot = Groups::slot_of(id);
  for (std::int32_t r = checkpoints.first(slot); r != CheckpointList::kNone;
       r = checkpoints.next(r)) {
    if (!is_live(r)) continue;
    if (count < std::ssize(lengths)) {
      lengths[static_cast<std::size_t>(count)] = checkpoints.length(r);
    }
    ++count;
  }
  if (count > std::ssize(lengths)) {
    return invalid_argument(Resource::span_size, std::ssize(lengths), count, kMost);
  }
  std::ranges::sort(lengths.first(static_cast<std::size_t>(count)));
  return count;
}

Result<std::int64_t> BlockTables::Impl::Groups::States::blocks_at(
    SequenceId id, std::int64_t length, std::int32_t group, std::span<BlockId> ids,
    std::span<Generation> generations) const {
  const Of* const of = group < 0 ? nullptr : find(static_cast<std::size_t>(group));
  if (of == nullptr) {
    return invalid_argument(Resource::num_groups, group,
                            static_cast<std::int64_t>(list.front().group),
                            static_cast<std::int64_t>(list.back().group));
  }
  for (const std::int64_t size : {std::ssize(ids), std::ssize(generations)}) {
    if (size < of->parts) return invalid_argument(Resource::span_size, size, of->parts, kMost);
  }
  if (const std::optional<std::int64_t> first = entry_of(id, *of, length); first && length > 0) {
    const PageTree& tree = table_of(id, *of).tree;
    for (std::int64_t part = 0; part < of->parts; ++part) {
      const auto entry = static_cast<std::int32_t>(*first + part);
      ids[static_cast<std::size_t>(part)] = tree.id_at(t.pages, entry);
      generations[static_cast<std::size_t>(part)] = tree.generation_at(t.pages, entry);
    }
    return of->parts;
  }
  const std::int32_t record = live_record(id, length);
  if (record == CheckpointList::kNone) {
    const std::int64_t at_most = std::min<std::int64_t>(length, t.sequences.find(id)->length);
    return failed_precondition(Resource::sequence_length, id.value,
                               static_cast<std::uint64_t>(length),
                               static_cast<std::uint64_t>(restorable(id, at_most)));
  }
  std::ranges::copy(ids_of(record, *of), ids.begin());
  std::ranges::copy(generations_of(record, *of), generations.begin());
  return of->parts;
}

// ---- public calls ------------------------------------------------------------------------------

namespace {

/// Returns what the calls for states return without one.
Status no_states(bool has_states) noexcept {
  return has_states ? Status{} : unsupported(Resource::num_groups, 0);
}

}  // namespace

Status BlockTables::checkpoint(SequenceId id) {
  Impl& t = *impl_;
  if (Status s = no_states(t.groups && t.groups->states); !s) return s;
  Sequence* const s = t.sequences.find(id);
  if (s == nullptr) return not_found(Resource::sequence, id.value);
  if (Status e = Impl::check_imported(id, *s); !e) return e;
  if (t.is_undoable) return failed_precondition(Resource::sequence, id.value);
  if (s->length == 0) return {};
  auto& states = *t.groups->states;
  if (states.is_lost(*s)) return t.groups->check_restorable(id, s->length);
  states.keep_checkpoint(*s, s->length);
  return {};
}

Status BlockTables::lose_states(SequenceId id, std::int64_t length) {
  Impl& t = *impl_;
  if (Status s = no_states(t.groups && t.groups->states); !s) return s;
  Sequence* const s = t.sequences.find(id);
  if (s != nullptr) return t.groups->states->lose(*s, length);
  t.groups->settle();
  return not_found(Resource::sequence, id.value);
}

Result<std::int64_t> BlockTables::checkpoints_of(SequenceId id,
                                                 std::span<std::int64_t> lengths) const {
  const Impl& t = *impl_;
  if (Status s = no_states(t.groups && t.groups->states); !s) return s;
  if (t.sequences.find(id) == nullptr) return not_found(Resource::sequence, id.value);
  return t.groups->states->lengths_of(id, lengths);
}

Result<std::int64_t> BlockTables::state_blocks(SequenceId id, std::int64_t length,
                                               std::int32_t group, std::span<BlockId> ids,
                                               std::span<Generation> generations) const {
  const Impl& t = *impl_;
  if (Status s = no_states(t.groups && t.groups->states); !s) return s;
  if (t.sequences.find(id) == nullptr) return not_found(Resource::sequence, id.value);
  return t.groups->states->blocks_at(id, length, group, ids, generations);
}

}  // namespace kvarena
