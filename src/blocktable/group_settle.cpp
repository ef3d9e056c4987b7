// The end of an append with groups: blocks that no later token reads go, or the append is undone.
// Capacity: blocks taken ahead, and promises in pages.

#include "allocator/own_pages.hpp"
#include "allocator/release_probe.hpp"
#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {

/// Releases the blocks at the front of a sequence's tables that no later token reads.
void BlockTables::Impl::Groups::release_old(Sequence& s) noexcept {
  const std::span<Table> its = tables_of(s.id);
  for (const std::uint32_t g : leaving) {
    release_front(s.holder, its[g], list[g].first_kept(s.length));
  }
  if (states) states->settle(s);
  note_release(s);
}

/// Calls visit(leaf page, place on it) for the entry that leaves each table of a sequence next.
template <class Visit>
void BlockTables::Impl::Groups::for_each_leaving(SequenceId id, Visit visit) const {
  const std::span<const Table> its = tables_of(id);
  for (const std::uint32_t g : leaving) {
    const Table& table = its[g];
    if (table.first_held >= table.tree.num_entries) continue;
    visit(table.tree.leaf_page(t.pages, table.first_held >> kPageShift),
          table.first_held & kPageMask);
  }
}

/// Notes that blocks leave a row when the append is settled. Prepares the cache for their table
/// entries, which were used last when the blocks were full.
void BlockTables::Impl::Groups::note_due(SequenceId id, std::size_t row) noexcept {
  due[num_due++] = static_cast<std::uint32_t>(row);
  for_each_leaving(id, [&](std::int32_t leaf, std::int32_t place) {
    __builtin_prefetch(t.pages.ids(leaf) + place, 1);
    __builtin_prefetch(t.pages.generations(leaf) + place);
  });
}

/// Prepares the cache for what the manager has of the blocks that leave.
void BlockTables::Impl::Groups::prefetch_due() const noexcept {
  for (std::size_t i = 0; i < num_due; ++i) {
    const SequenceId id = t.grown[due[i]].id;
    if (t.sequences.find(id) == nullptr) continue;
    for_each_leaving(id, [&](std::int32_t leaf, std::int32_t place) {
      ReleaseProbe::prefetch(*t.manager, t.pages.ids(leaf)[place]);
    });
  }
}

/// The sequences of the append have their references, so this cannot fail.
void BlockTables::Impl::Groups::settle() noexcept {
  t.is_undoable = false;
  if (is_settled) return;
  is_settled = true;
  for (std::size_t i = 0; i < num_kept; ++i) {
    const KeptBlock& its = kept[i];
    if (its.block == kNoBlock) continue;  // it was put back
    static_cast<void>(t.manager->release(t.sequences.find(its.id)->holder,
                                         std::span<const BlockId>(&its.block, 1),
                                         std::span<const Generation>(&its.generation, 1)));
  }
  num_kept = 0;
  const auto settle_row = [&](std::size_t row) {
    Sequence* s = t.sequences.find(t.grown[row].id);
    if (s == nullptr) return;
    if (s->length >= release_at[slot_of(s->id)]) release_old(*s);
    if (promised[slot_of(s->id)] != 0) renew_promise(*s);
  };
  if (settles_all || num_promises != 0) {
    for (std::size_t row = 0; row < t.num_grown; ++row) settle_row(row);
  } else {
    prefetch_due();
    for (std::size_t i = 0; i < num_due; ++i) settle_row(due[i]);
  }
  settles_all = false;
  num_due = 0;
  t.num_grown = 0;
}

std::int64_t BlockTables::Impl::Groups::num_kept_of(SequenceId id) const noexcept {
  if (num_kept == 0) return 0;
  const KeptBlock* const first = kept.data();
  return std::count_if(first, first + num_kept,
                       [id](const KeptBlock& its) { return its.id == id; });
}

/// Releases the kept blocks of a sequence that ends before the append is settled.
Status BlockTables::Impl::Groups::release_kept(SequenceId id, Ticket ticket) {
  std::size_t left = 0;
  Status first;
  for (std::size_t i = 0; i < num_kept; ++i) {
    const KeptBlock its = kept[i];
    if (its.id != id || !first) {
      kept[left++] = its;
      continue;
    }
    const HolderId holder = t.sequences.find(id)->holder;
    const std::span<const BlockId> block(&its.block, 1);
    const std::span<const Generation> generation(&its.generation, 1);
    first = ticket == kNoTicket ? t.manager->release(holder, block, generation)
                                : t.manager->release_after(ticket, holder, block, generation);
    if (!first) kept[left++] = its;
  }
  num_kept = left;
  return first;
}

// ---- undo --------------------------------------------------------------------------------------

/// Removes the new tokens of a sequence, and reserved blocks that others have claimed since they
/// got tokens: these must not be written again.
void BlockTables::Impl::Groups::take_back_tokens(const Impl::Grown& its) {
  Sequence* s = t.sequences.find(its.id);
  if (s == nullptr || s->length <= its.old_length) return;
  if (t.prefix != nullptr) t.prefix->cut(t.prefix_owner(*s), its.old_length, true);
  const std::span<Table> all = tables_of(its.id);
  for (std::size_t g = 0; g < size(); ++g) {
    if (!list[g].grows()) continue;
    PageTree& tree = all[g].tree;
    const auto filled = static_cast<std::int32_t>(blocks_for(list[g], its.old_length));
    const auto were_filled = static_cast<std::int32_t>(
        std::min<std::int64_t>(blocks_for(list[g], s->length), tree.num_entries));
    for (std::int32_t i = filled; i < were_filled; ++i) {
      if (t.manager->claims(tree.id_at(std::as_const(t.pages), i)) == 1) continue;
      static_cast<void>(release_tail(s->holder, all[g], g, i, kNoTicket));
      break;
    }
  }
  t.tokens -= s->length - its.old_length;
  s->length = its.old_length;
}

/// Releases the blocks that a growth took, except copies.
void BlockTables::Impl::Groups::take_back_blocks(std::size_t growth) {
  Sequence* s = t.sequences.find(growths[growth].id);
  if (s == nullptr) return;
  const std::span<Table> all = tables_of(s->id);
  for (std::size_t g = size(); g-- > 0;) {
    const std::int64_t old = table_growths[growth * size() + g].old_entries;
    if (all[g].tree.num_entries <= old || list[g].is_state) continue;
    static_cast<void>(release_tail(s->holder, all[g], g, old, kNoTicket));
  }
}

/// Releases a copy and puts the copied block back in its place. Returns false when the copy is not
/// there any more.
bool BlockTables::Impl::Groups::put_back(const KeptBlock& its) {
  Sequence* s = t.sequences.find(its.id);
  if (s == nullptr) return false;
  Table& table = tables_of(its.id)[static_cast<std::size_t>(its.group)];
  if (its.index < table.first_held || its.index >= table.tree.num_entries) return false;
  BlockId& id = table.tree.id_at(t.pages, its.index);
  if (id != its.copy) return false;
  Generation& generation = table.tree.generation_at(t.pages, its.index);
  static_cast<void>(t.manager->release(s->holder, std::span<const BlockId>(&id, 1),
                                       std::span<const Generation>(&generation, 1)));
  id = its.block;
  generation = its.generation;
  table.mirrored = std::min(table.mirrored, its.index);
  return true;
}

/// Undoes the append in reverse order, so that the free blocks get their old order.
void BlockTables::Impl::Groups::undo_append(bool copies_are_made) {
  const std::span<const Impl::Grown> all(t.grown.data(), t.num_grown);
  for (const Impl::Grown& its : all) take_back_tokens(its);
  std::size_t left = num_kept;  // in the order of the growths that copied them
  for (std::size_t i = num_growths; i-- > 0;) {
    take_back_blocks(i);
    for (; left > 0 && kept[left - 1].id == growths[i].id; --left) {
      KeptBlock& its = kept[left - 1];
      if (!copies_are_made && put_back(its)) its.block = kNoBlock;
    }
  }
  for (const Impl::Grown& its : all) {
    Sequence* const s = t.sequences.find(its.id);
    if (s == nullptr) continue;
    if (states) states->undo(*s, copies_are_made);
    place_tails(*s);
  }
  settles_all = true;
  settle();
}

// ---- capacity ----------------------------------------------------------------------------------

/// The sequence exists, and the capacity is within its maximum. Keeps what is known of the last
/// append.
Status BlockTables::Impl::Groups::reserve_capacity(SequenceId id, std::int64_t capacity,
                                                   Urgency urgency) {
  Sequence& s = *t.sequences.find(id);
  const std::int64_t failed_append = t.failed_demand;
  t.num_new_blocks = 0;
  num_demands = 0;
  first_growth = num_growths;  // those of the last append are needed to undo it
  plan_growth(s, capacity, 0, std::nullopt, false);
  const Status status = take_blocks(urgency);
  if (status) apply_growths();
  num_growths = std::exchange(first_growth, 0);
  t.failed_demand = failed_append;
  return status;
}

/// Returns the pages that a sequence may still turn in a group while it grows to `capacity`, in
/// steps that begin one block of the group at most. It first fills the page that it turned last. A
/// window, a chunk or states give pages back while they take others: they have so many at most, and
/// those that the sequence has now come back.
std::int64_t BlockTables::Impl::Groups::promised_pages(SequenceId id, std::size_t g,
                                                       std::int64_t capacity) const noexcept {
  const Group& group = list[g];
  const Table& table = tables_of(id)[g];
  const HolderId holder = t.sequences.find(id)->holder;
  const std::int64_t m = group.blocks_per_page;
  if (group.is_state) {
    if (capacity == 0) return 0;
    const States::Of& of = *states->find(g);
    // States that steps write over do not go in the order in which they came.
    const bool go_in_order = of.keeps || of.rollback == 0;
    const auto pages = [&](std::int64_t blocks) {
      const std::int64_t num = blocks / of.parts;
      return go_in_order ? pages_of_states(num, of.parts, m)
                         : num * pages_of_states(1, of.parts, m);
    };
    return missing_pages(g, holder, pages(states->most_blocks(of)), pages(table.num_held()));
  }
  const std::int64_t missing =
      blocks_for(group, tokens_in(group, id, capacity)) - table.tree.num_entries;
  const std::int64_t beyond =
      missing - OwnPages::free_slots(*t.manager, holder, static_cast<std::int32_t>(g));
  if (missing <= 0 || beyond <= 0) return 0;
  const std::int64_t needed = (beyond + m - 1) / m;
  const PagedKind kind = group.retention.kind;
  if (kind != PagedKind::window && kind != PagedKind::chunk) return needed;
  const std::int64_t most = pages_of(kind, peak_blocks(group.retention, capacity) + 1, m);
  return std::min(needed, missing_pages(g, holder, most, pages_of(kind, table.num_held(), m)));
}

/// The pages that a holder lacks of the `most` that it has at a time. Of those that it has, at most
/// `held`, its own come back.
std::int64_t BlockTables::Impl::Groups::missing_pages(std::size_t g, HolderId holder,
                                                      std::int64_t most,
                                                      std::int64_t held) const noexcept {
  const std::int64_t own = OwnPages::count(*t.manager, holder, static_cast<std::int32_t>(g));
  const std::int64_t returning = list[g].blocks_per_page == 1 ? held : std::min(held, own);
  return std::max<std::int64_t>(0, most - returning);
}

/// The same in all groups.
std::int64_t BlockTables::Impl::Groups::promised_pages(SequenceId id,
                                                       std::int64_t capacity) const noexcept {
  std::int64_t pages = 0;
  for (std::size_t g = 0; g < size(); ++g) pages += promised_pages(id, g, capacity);
  return pages;
}

/// Brings the promise to what the sequence may still need, as far as there are pages.
void BlockTables::Impl::Groups::renew_promise(const Sequence& s) noexcept {
  const std::int64_t wanted = promised_pages(s.id, promised[slot_of(s.id)]);
  const std::int64_t now = t.manager->holder(s.holder)->reserved;
  if (wanted == now) return;
  const std::int64_t left = t.manager->available_now() - t.manager->stats().reserved;
  const std::int64_t renewed = std::min(wanted, now + std::max<std::int64_t>(0, left));
  if (renewed != now) static_cast<void>(t.manager->reserve(s.holder, renewed, Urgency::growth));
}

/// The sequence exists, and the capacity is within its maximum.
Status BlockTables::Impl::Groups::promise_capacity(SequenceId id, std::int64_t capacity) {
  const Status status =
      t.manager->reserve(t.sequences.find(id)->holder, promised_pages(id, capacity));
  if (status) set_promise(id, capacity);
  return status;
}

void BlockTables::Impl::Groups::set_promise(SequenceId id, std::int64_t capacity) noexcept {
  std::int64_t& its = promised[slot_of(id)];
  if (its != 0) --num_promises;
  if (capacity != 0) ++num_promises;
  its = capacity;
}

}  // namespace kvarena
