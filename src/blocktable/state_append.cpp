// States of recurrent layers in a step: which slots its rows read and write, and what stays when
// the step is settled or undone.

#include "blocktable/state_tables.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvarena {

// ---- what a step takes -------------------------------------------------------------------------

bool BlockTables::Impl::Groups::States::is_sole(const Table& table, const Of& of,
                                                std::int64_t version) const noexcept {
  for (std::int64_t part = 0; part < of.parts; ++part) {
    const auto entry = static_cast<std::int32_t>(version * of.parts + part);
    if (t.manager->claims(table.tree.id_at(std::as_const(t.pages), entry)) > 1) return false;
  }
  return true;
}

/// Whether a step to length `after` may write over a state: it leaves with the step, and nobody
/// else needs it.
bool BlockTables::Impl::Groups::States::is_rewritten(const Sequence& s, const Of& of,
                                                     std::int64_t version,
                                                     std::int64_t after) const noexcept {
  const std::int64_t length = versions_of(s.id, of)[static_cast<std::size_t>(version)].length;
  return !of.keeps && length < after - of.rollback && is_sole(table_of(s.id, of), of, version);
}

std::int64_t BlockTables::Impl::Groups::States::num_fresh(const Sequence& s, const Of& of,
                                                          std::int64_t wanted) const noexcept {
  std::int64_t count = std::min(wanted, of.rollback + 1);
  const std::int64_t num_versions = held_of(s.id, of).num_versions;
  for (std::int64_t i = 0; i < num_versions && count > 0 && !of.keeps; ++i) {
    if (is_rewritten(s, of, i, s.length + wanted)) --count;
  }
  return count;
}

std::int64_t BlockTables::Impl::Groups::States::next_mark(SequenceId id,
                                                          std::int64_t length) const noexcept {
  std::int64_t next = every == 0 ? Groups::kNever : (length / every + 1) * every;
  const Asked& its = asked[Groups::slot_of(id)];
  for (const std::int64_t at : {its.prompt_end, its.branch}) {
    if (at > length) next = std::min(next, at);
  }
  return next;
}

void BlockTables::Impl::Groups::States::ask(SequenceId id, std::int64_t prompt_end,
                                            std::int64_t branch) noexcept {
  asked[Groups::slot_of(id)] = {static_cast<std::int32_t>(prompt_end),
                                static_cast<std::int32_t>(branch)};
}

/// Checkpoints inside a step that are none of the states that the sequence has after it.
std::int64_t BlockTables::Impl::Groups::States::num_marks(SequenceId id, const Of& of,
                                                          std::int64_t length,
                                                          std::int64_t wanted) const noexcept {
  const std::int64_t last = length + wanted - std::min(wanted, of.rollback + 1);
  std::int64_t count = 0;
  for (std::int64_t at = next_mark(id, length); at <= last; at = next_mark(id, at)) ++count;
  return count;
}

/// The length to which steps only write over the state, without a checkpoint inside; 0: none does.
std::int32_t BlockTables::Impl::Groups::States::writes_over_until(const Sequence& s,
                                                                  const Of& of) const noexcept {
  constexpr std::int64_t kNoLimit = std::numeric_limits<std::int32_t>::max();
  if (of.keeps || of.rollback > 0 || s.length == 0) return 0;
  const Held& h = held_of(s.id, of);
  if (h.num_versions != 1 || h.num_marks != 0) return 0;
  if (versions_of(s.id, of)[0].length != s.length) return 0;
  return static_cast<std::int32_t>(std::min(next_mark(s.id, s.length), kNoLimit));
}

void BlockTables::Impl::Groups::States::begin_step() noexcept {
  for (Output& output : outputs) output.num_extras = output.num_offsets = 0;
}

/// Takes the marks of all groups of a row, or none: checkpoints do without when pages are short.
void BlockTables::Impl::Groups::States::take_marks(Sequence& s, std::int64_t wanted) {
  std::int64_t pages = 0;
  std::int64_t table_pages = 0;
  std::int64_t num_blocks = 0;
  std::size_t count = 0;
  for (const Of& of : list) {
    const std::int64_t blocks = num_marks(s.id, of, s.length, wanted) * of.parts;
    if (blocks == 0) continue;
    const std::int64_t m = groups.list[of.group].blocks_per_page;
    const std::int64_t entries = table_of(s.id, of).tree.num_entries;
    pages += (blocks + m - 1) / m;
    table_pages += PageTree::pages_to_grow(entries, blocks);
    num_blocks += blocks;
    wanted_marks[count++] = {.holder = s.holder,
                             .count = static_cast<std::uint32_t>(blocks),
                             .group = static_cast<std::int32_t>(of.group)};
  }
  if (count == 0 || table_pages > t.pages.available()) return;
  if (!t.manager->can_allocate(pages, Urgency::admission)) return;
  const auto size = static_cast<std::size_t>(num_blocks);
  if (!t.manager->allocate_each(std::span(wanted_marks.data(), count),
                                std::span(t.new_ids.data(), size),
                                std::span(t.new_generations.data(), size), Urgency::admission)) {
    return;
  }
  groups.note_evictions(s.id);
  const BlockId* id = t.new_ids.data();
  const Generation* generation = t.new_generations.data();
  for (const Of& of : list) {
    const std::int64_t marks = num_marks(s.id, of, s.length, wanted);
    Held& h = held_of(s.id, of);
    h.num_marks = static_cast<std::int32_t>(marks);
    h.first_mark = static_cast<std::int32_t>(next_mark(s.id, s.length));
    groups.add_blocks(table_of(s.id, of), of.group, id, generation, marks * of.parts);
    id += marks * of.parts;
    generation += marks * of.parts;
  }
  t.num_new_blocks += num_blocks;
}

// ---- what a step hands out ---------------------------------------------------------------------

/// Chooses the states for the last tokens of a step, by rising length: those that are written over,
/// then the new ones. The state that the step reads comes last, for the last token, so that a
/// kernel has read it before it is written.
void BlockTables::Impl::Groups::States::choose_targets(const Sequence& s, const Of& of,
                                                       std::int64_t wanted,
                                                       std::int64_t num_fresh) noexcept {
  const std::span<const Version> its = versions_of(s.id, of);
  const std::int64_t num_states = std::min(wanted, of.rollback + 1);
  const std::int64_t num_reused = num_states - num_fresh;
  std::int64_t* const first = targets.data();
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < std::ssize(its) && num_reused > 0; ++i) {
    if (is_rewritten(s, of, i, s.length + wanted)) first[count++] = i;
  }
  std::sort(first, first + count, [&](std::int64_t a, std::int64_t b) {
    return its[static_cast<std::size_t>(a)].length < its[static_cast<std::size_t>(b)].length;
  });
  for (std::int64_t i = 0; i < num_fresh; ++i) first[num_reused + i] = std::ssize(its) + i;
  const bool reads_last =
      num_reused > 0 && its[static_cast<std::size_t>(first[num_reused - 1])].length == s.length;
  if (reads_last) std::rotate(first + num_reused - 1, first + num_reused, first + num_states);
}

void BlockTables::Impl::Groups::States::add_extra(const Of& of, Output& output, const Table& table,
                                                  std::int64_t token,
                                                  std::int64_t first_entry) noexcept {
  output.extra_tokens[output.num_extras] = static_cast<std::int32_t>(token);
  write_slots(of, table, first_entry,
              output.extra_slots.data() + output.num_extras * static_cast<std::size_t>(of.parts));
  ++output.num_extras;
}

/// A kernel that works in place finds the state where it writes: the state from before the step is
/// copied there, or zeros for an empty sequence.
void BlockTables::Impl::Groups::States::copy_present(const Of& of, const Table& table,
                                                     std::optional<std::int64_t> from,
                                                     std::int64_t to) noexcept {
  for (std::int64_t part = 0; part < of.parts; ++part) {
    const BlockId source = from ? table_id_at(of, table, *from + part) : kNoBlock;
    groups.copies[groups.num_copies] = {source, table_id_at(of, table, to + part)};
    groups.copy_groups[groups.num_copies++] = static_cast<std::int32_t>(of.group);
  }
}

/// Notes the new states of a step.
void BlockTables::Impl::Groups::States::note_versions(const Sequence& s, const Of& of,
                                                      std::int64_t wanted,
                                                      std::int64_t num_fresh) noexcept {
  Held& h = held_of(s.id, of);
  const std::int64_t num_old = h.num_versions;
  const std::int64_t num_states = std::min(wanted, of.rollback + 1);
  h.num_versions += static_cast<std::int32_t>(num_fresh);
  const std::span<Version> all = versions_of(s.id, of);
  for (std::int64_t i = 0; i < num_states; ++i) {
    const std::int64_t at = targets[static_cast<std::size_t>(i)];
    Version& version = all[static_cast<std::size_t>(at)];
    if (at >= num_old) version.was = Version::kNew;
    version.length = static_cast<std::int32_t>(s.length + wanted - num_states + 1 + i);
  }
}

/// Hands out the slots of a row that does not only write over its state.
void BlockTables::Impl::Groups::States::write_step(Sequence& s, const Of& of, std::int64_t wanted,
                                                   Output& output, std::int32_t* read,
                                                   std::int32_t* write) noexcept {
  const Held& h = held_of(s.id, of);
  Table& table = table_of(s.id, of);
  const std::int64_t num_states = std::min(wanted, of.rollback + 1);
  const std::int64_t num_fresh = table.tree.num_entries / of.parts - h.num_versions - h.num_marks;
  choose_targets(s, of, wanted, num_fresh);
  std::int64_t at = h.first_mark;
  for (std::int64_t i = 0; i < h.num_marks; ++i) {
    const std::int64_t mark = (h.num_versions + num_fresh + i) * of.parts;
    add_extra(of, output, table, at - s.length - 1, mark);
    at = next_mark(s.id, at);
  }
  for (std::int64_t i = 0; i + 1 < num_states; ++i) {
    const std::int64_t target = targets[static_cast<std::size_t>(i)] * of.parts;
    add_extra(of, output, table, wanted - num_states + i, target);
  }
  const std::int64_t last = targets[static_cast<std::size_t>(num_states - 1)] * of.parts;
  write_slots(of, table, last, write);
  if (of.is_in_place) {
    std::optional<std::int64_t> from;
    if (s.length > 0) from = entry_of(s.id, of, s.length);
    if (from != last) copy_present(of, table, from, last);
    std::copy_n(write, of.parts, read);
  }
  std::copy_n(write, of.parts, present_of(s.id, of));
  note_versions(s, of, wanted, num_fresh);
  table.fits_until = 0;
  groups.release_at[Groups::slot_of(s.id)] = 0;
}

void BlockTables::Impl::Groups::States::step_in(Sequence& s, const Of& of, std::int64_t wanted,
                                                std::size_t row) noexcept {
  Output& output = outputs[index_of(of)];
  const auto parts = static_cast<std::size_t>(of.parts);
  std::int32_t* const read = output.read.data() + row * parts;
  std::int32_t* const write = output.write.data() + row * parts;
  output.begin_row(row);
  std::copy_n(present_of(s.id, of), parts, read);
  for (Version& version : versions_of(s.id, of)) version.was = version.length;
  if (wanted > 0) {
    write_step(s, of, wanted, output, read, write);
  } else {
    std::fill_n(write, parts, kNoBlock.value);
  }
}

void BlockTables::Impl::Groups::States::hand_out_present(SequenceId id, std::size_t row) noexcept {
  row_states[row] = state_numbers[Groups::slot_of(id)];
  for (const Of& of : list) {
    Output& output = outputs[index_of(of)];
    const std::size_t first = row * static_cast<std::size_t>(of.parts);
    std::copy_n(present_of(id, of), of.parts, output.read.data() + first);
    std::copy_n(present_of(id, of), of.parts, output.write.data() + first);
  }
}

void BlockTables::Impl::Groups::States::step(Sequence& s, std::int64_t wanted,
                                             std::size_t row) noexcept {
  const bool only_writes_over =
      wanted > 0 && std::ranges::all_of(list, [&](const Of& of) {
        const Table& table = table_of(s.id, of);
        return s.length + wanted <= table.fits_until && table.tree.num_entries == of.parts;
      });
  if (only_writes_over) return write_over(s, wanted, row);
  for (const Of& of : list) step_in(s, of, wanted, row);
  row_states[row] = 0;
  state_numbers[Groups::slot_of(s.id)] = ++last_state_number;
}

std::span<const StateSlots> BlockTables::Impl::Groups::States::end_step(std::size_t rows) noexcept {
  for (const Of& of : list) {
    Output& output = outputs[index_of(of)];
    const auto parts = static_cast<std::size_t>(of.parts);
    output.begin_row(rows);
    slots[index_of(of)] = {
        .group = static_cast<std::int32_t>(of.group),
        .num_parts = static_cast<std::int32_t>(of.parts),
        .read = std::span(output.read.data(), rows * parts),
        .write = std::span(output.write.data(), rows * parts),
        .extra_offsets = std::span(output.extra_offsets.data(), rows + 1),
        .extra_tokens = std::span(output.extra_tokens.data(), output.num_extras),
        .extra_slots = std::span(output.extra_slots.data(), output.num_extras * parts)};
  }
  return slots;
}

// ---- the end of a step -------------------------------------------------------------------------

/// New states where checkpoints are due become checkpoints, then states that leave are released.
/// The sequence has the references, so this cannot fail.
void BlockTables::Impl::Groups::States::settle(Sequence& s) noexcept {
  const Of& first = list.front();
  const Held marks = held_of(s.id, first);
  std::int64_t at = marks.first_mark;
  for (std::int64_t i = 0; i < marks.num_marks; ++i) {
    keep_checkpoint(s, at);
    at = next_mark(s.id, at);
  }
  for (const Version& version : versions_of(s.id, first)) {
    const bool is_new = version.was != version.length;
    if (is_new && is_mark(s.id, version.length)) keep_checkpoint(s, version.length);
  }
  for (const Of& of : list) {
    Held& h = held_of(s.id, of);
    if (h.num_marks != 0) {
      static_cast<void>(erase(s, of, h.num_versions * of.parts, h.num_marks * of.parts, kNoTicket));
      h.num_marks = 0;
    }
    for (std::int64_t i = h.num_versions; i-- > 0;) {
      Version& version = versions_of(s.id, of)[static_cast<std::size_t>(i)];
      version.was = version.length;
      if (version.length >= s.length - of.rollback) continue;
      static_cast<void>(erase_version(s, of, i, kNoTicket));
    }
    table_of(s.id, of).fits_until = writes_over_until(s, of);
  }
}

/// The length is the old one again. States that were taken go; those that were written over are
/// lost when the step may have run.
void BlockTables::Impl::Groups::States::undo(Sequence& s, bool are_written) noexcept {
  for (const Of& of : list) {
    Held& h = held_of(s.id, of);
    if (h.num_marks != 0) {
      static_cast<void>(erase(s, of, h.num_versions * of.parts, h.num_marks * of.parts, kNoTicket));
      h.num_marks = 0;
    }
    for (std::int64_t i = h.num_versions; i-- > 0;) {
      Version& version = versions_of(s.id, of)[static_cast<std::size_t>(i)];
      const bool is_new = version.was == Version::kNew;
      if (!is_new && (version.was == version.length || !are_written)) {
        version.length = version.was;
        continue;
      }
      static_cast<void>(erase_version(s, of, i, kNoTicket));
    }
  }
}

std::int64_t BlockTables::Impl::Groups::States::most_blocks(const Of& of) const noexcept {
  return (of.keeps ? 2 * (of.rollback + 1) : of.rollback + 2) * of.parts;
}

std::int64_t BlockTables::Impl::Groups::States::next_work(const Sequence& s) const noexcept {
  const bool each_step =
      std::ranges::any_of(list, [](const Of& of) { return of.keeps || of.rollback > 0; });
  return each_step || !groups.is_settled ? 0 : next_mark(s.id, s.length);
}

}  // namespace kvarena
