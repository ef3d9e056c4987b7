// States of recurrent layers: the references of forks, pins and cuts.

#include "blocktable/state_extras.hpp"
#include "blocktable/state_tables.hpp"

#include <algorithm>
#include <array>

namespace kvarena {

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
  const std::int32_t record =
      has_all(parent, length) ? CheckpointList::kNone : live_record(parent, length);
  std::array<BlockId, kMaxStateParts> ids;
  std::array<Generation, kMaxStateParts> generations;
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
Status BlockTables::Impl::Groups::States::erase(const Sequence& s, const Of& of, std::int64_t first,
                                                std::int64_t count, Ticket ticket) {
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

/// Releases one state of a sequence.
Status BlockTables::Impl::Groups::States::erase_version(const Sequence& s, const Of& of,
                                                        std::int64_t version, Ticket ticket) {
  if (Status e = erase(s, of, version * of.parts, of.parts, ticket); !e) return e;
  const std::span<Version> its = versions_of(s.id, of);
  std::copy(its.begin() + version + 1, its.end(), its.begin() + version);
  --held_of(s.id, of).num_versions;
  return {};
}

/// Takes the states of a checkpoint behind those that a sequence has. All parts of all groups are
/// retained in one call, so that a refusal changes nothing.
Status BlockTables::Impl::Groups::States::take_checkpoint(Sequence& s, std::int64_t length) {
  const std::int32_t record = live_record(s.id, length);
  std::int64_t needed = 0;
  for (const Of& of : list) {
    const std::int64_t entries = table_of(s.id, of).tree.num_entries;
    needed += PageTree::pages_to_grow(entries, of.parts);
  }
  if (needed > t.pages.available()) {
    return exhausted(Resource::table_page, static_cast<std::uint64_t>(needed),
                     static_cast<std::uint64_t>(t.pages.available()), s.id.value,
                     Option::max_table_pages);
  }
  if (Status status =
          t.manager->retain(s.holder, checkpoints.ids(record), checkpoints.generations(record));
      !status) {
    return status;
  }
  for (const Of& of : list) {
    groups.add_blocks(table_of(s.id, of), of.group, ids_of(record, of).data(),
                      generations_of(record, of).data(), of.parts);
  }
  return {};
}

/// Releases the states behind `length`; with 0 all of them.
Status BlockTables::Impl::Groups::States::drop_after(Sequence& s, const Of& of, std::int64_t length,
                                                     Ticket ticket) {
  Held& h = held_of(s.id, of);
  std::int64_t marks = 0;
  for (std::int64_t at = h.first_mark; marks < h.num_marks && at <= length; ++marks) {
    at = next_mark(s.id, at);
  }
  if (marks < h.num_marks) {
    const std::int64_t first = (h.num_versions + marks) * of.parts;
    if (Status e = erase(s, of, first, (h.num_marks - marks) * of.parts, ticket); !e) return e;
    h.num_marks = static_cast<std::int32_t>(marks);
  }
  for (std::int64_t i = h.num_versions; i-- > 0;) {
    const bool stays = versions_of(s.id, of)[static_cast<std::size_t>(i)].length <= length;
    if (stays && length > 0) continue;
    if (Status e = erase_version(s, of, i, ticket); !e) return e;
  }
  return {};
}

/// A checkpoint can be forgotten while its blocks are held, so the blocks of held states are looked
/// at too.
Status BlockTables::Impl::Groups::States::lose(Sequence& s, std::int64_t length) {
  const auto lose_block = [&](BlockId id) {
    if (t.prefix != nullptr) t.prefix->companions()->lost(id);
  };
  // Before the append is settled, which would make checkpoints of them.
  for (const Of& of : list) {
    const std::span<const Version> its = versions_of(s.id, of);
    for (std::size_t i = 0; i < its.size(); ++i) {
      if (its[i].length <= length) continue;
      for (std::int64_t part = 0; part < of.parts; ++part) {
        const std::int64_t entry = static_cast<std::int64_t>(i) * of.parts + part;
        lose_block(table_of(s.id, of).tree.id_at(t.pages, static_cast<std::int32_t>(entry)));
      }
    }
    if (Status e = drop_after(s, of, length, kNoTicket); !e) return e;
  }
  groups.settle();
  const std::size_t slot = Groups::slot_of(s.id);
  for (std::int32_t r = checkpoints.first(slot); r != CheckpointList::kNone;
       r = checkpoints.next(r)) {
    if (checkpoints.length(r) <= length || !is_live(r)) continue;
    std::ranges::for_each(checkpoints.ids(r), lose_block);
  }
  checkpoints.drop_after(slot, static_cast<std::int32_t>(length));
  place(s);
  groups.note_room(s);
  return {};
}

/// Keeps the states up to `length`. Where only a checkpoint has it, that becomes the only state;
/// its blocks are retained before any other is released. The caller has checked the ticket.
Status BlockTables::Impl::Groups::States::cut(Sequence& s, std::int64_t length, Ticket ticket) {
  const bool uses_checkpoint = length > 0 && !has_all(s.id, length);
  if (uses_checkpoint) {
    if (Status status = take_checkpoint(s, length); !status) return status;
  }
  for (const Of& of : list) {
    if (Status e = drop_after(s, of, uses_checkpoint ? 0 : length, ticket); !e) return e;
  }
  if (uses_checkpoint) note_first(s.id, length);
  checkpoints.drop_after(Groups::slot_of(s.id), static_cast<std::int32_t>(length));
  return {};
}

}  // namespace kvarena
