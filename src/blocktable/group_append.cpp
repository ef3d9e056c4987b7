// Growth of sequences with groups, in three parts as without groups: plan, take the blocks of all
// groups in one call, apply. A sequence within its room takes none of the slow ways.

#include "base/range_checks.hpp"
#include "blocktable/append_demands.hpp"
#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"
#include "blocktable/tell_tokens.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {

/// Notes what a sequence needs for `capacity` tokens in every group. With `writes` new tokens
/// follow, and a last block on which others have claims may be copied. A sequence that needs no
/// block is known to have its last blocks alone then; another one when it has its blocks.
void BlockTables::Impl::Groups::plan_growth(Sequence& s, std::int64_t capacity, std::size_t demand,
                                            std::optional<Urgency> urgency, bool writes) {
  const std::span<const Table> its = tables_of(s.id);
  TableGrowth* const growth = table_growths.data() + num_growths * size();
  bool grows = false;
  bool owns_tails = true;
  for (std::size_t g = 0; g < size(); ++g) {
    const Table& table = its[g];
    if (list[g].is_state) {
      const States::Of& of = *states->find(g);
      const bool takes =
          writes && !(s.claims_seen == t.claim_serial && table.fits_until >= capacity);
      const std::int64_t fresh = takes ? states->num_fresh(s, of, capacity - s.length) : 0;
      growth[g] = {.old_entries = table.tree.num_entries,
                   .new_entries = static_cast<std::int32_t>(fresh * of.parts),
                   .tail = kNoBlock};
      grows = grows || fresh > 0;
      continue;
    }
    const std::int64_t wanted = blocks_for(list[g], tokens_in(list[g], s.id, capacity));
    growth[g] = {.old_entries = table.tree.num_entries,
                 .new_entries = static_cast<std::int32_t>(
                     std::max<std::int64_t>(0, wanted - table.tree.num_entries)),
                 .tail = kNoBlock};
    grows = grows || growth[g].new_entries > 0;
    if (!writes || list[g].is_cross || table.fits_until == s.length) continue;
    const auto last = static_cast<std::int32_t>((s.length - 1) / list[g].block_size);
    const BlockId tail = table.tree.id_at(std::as_const(t.pages), last);
    if (t.manager->claims(tail) <= 1) continue;
    growth[g].tail = tail;
    shared_tails[num_shared_tails++] = {tail, static_cast<std::uint32_t>(num_growths * size() + g)};
    owns_tails = false;
  }
  if (grows || !owns_tails) {
    growths[num_growths++] = {.demand = demand,
                              .sequence = &s,
                              .id = s.id,
                              .urgency = urgency,
                              .owns_tails = writes && owns_tails};
  } else if (writes) {
    s.claims_seen = t.claim_serial;
  }
}

/// Whether all tables have the blocks for new tokens up to `length`, so that room ends for another
/// reason.
bool BlockTables::Impl::Groups::fits(const Sequence& s, std::int64_t length) const noexcept {
  const std::span<const Table> its = tables_of(s.id);
  for (std::size_t g = 0; g < size(); ++g) {
    if (!list[g].is_cross && its[g].fits_until < length) return false;
  }
  return s.length > 0;
}

/// Checks every demand and collects those that need blocks.
template <class Demands>
Status BlockTables::Impl::Groups::plan_append(const Demands& its) {
  ++t.calls;
  num_growths = num_shared_tails = num_copies = num_demands = 0;
  t.num_new_blocks = 0;
  t.claim_serial = t.claims_of_others();
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < its.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const SequenceId id = its.id(i);
    Sequence* s = t.sequences.find(id);
    if (s == nullptr) return t.fail(index, not_found(Resource::sequence, id.value));
    if (std::exchange(s->call_stamp, t.calls) == t.calls) {
      return t.fail(index, duplicate_argument(Resource::sequence, id.value));
    }
    if (its.urgency(i)) {
      if (Status e = check_enum(Resource::urgency, *its.urgency(i), Urgency::admission); !e) {
        return t.fail(index, e);
      }
    }
    const std::int64_t wanted = its.tokens(i);
    if (wanted < 0) {
      return t.fail(index, invalid_argument(Resource::num_tokens, wanted, 0, t.max_append_tokens));
    }
    if (Status e = check_values(its.values(i), wanted); !e) return t.fail(index, e);
    const std::int64_t length = s->length + wanted;
    if (length > s->max_length) return t.fail(index, too_long(id, length, s->max_length));
    num_tokens += wanted;
    if (num_tokens > t.max_append_tokens) {
      return t.fail(index, too_many_tokens(num_tokens, t.max_append_tokens, id));
    }
    const bool claims_are_known = s->claims_seen == t.claim_serial;
    if (wanted > 0 && wanted <= s->room && claims_are_known) [[likely]]
      continue;
    if (wanted > 0 && claims_are_known && fits(*s, length)) continue;
    if (Status e = check_imported(id, *s); !e) return t.fail(index, e);
    if (wanted == 0) {  // its encoder's blocks come with its first append
      if (t.max_cross_tokens > 0) plan_growth(*s, length, i, its.urgency(i), false);
      continue;
    }
    if (states && states->is_lost(*s)) return t.fail(index, check_restorable(id, s->length));
    plan_growth(*s, length, i, its.urgency(i), true);
  }
  t.num_new_tokens = num_tokens;
  return {};
}

/// As without groups: the sequences of a call copy a block that they share in demand order, until
/// one is left with the only claim on it.
void BlockTables::Impl::Groups::resolve_shared_tails() {
  SharedTail* const end = shared_tails.data() + num_shared_tails;
  std::sort(shared_tails.data(), end);
  for (SharedTail* run = shared_tails.data(); run != end;) {
    const BlockId block = run->block;
    std::int64_t claims = t.manager->claims(block);
    for (; run != end && run->block == block; ++run, --claims) {
      if (claims <= 1) table_growths[run->growth].tail = kNoBlock;
    }
  }
}

/// Checks that there are table pages for all growths.
Status BlockTables::Impl::Groups::check_table_pages() {
  std::int64_t needed = 0;
  const Grown* misfit = nullptr;
  for (std::size_t i = first_growth; i < num_growths; ++i) {
    for (std::size_t g = 0; g < size(); ++g) {
      const TableGrowth& growth = table_growths[i * size() + g];
      needed += PageTree::pages_to_grow(growth.old_entries, growth.new_entries);
    }
    if (misfit == nullptr && needed > t.pages.available()) misfit = &growths[i];
  }
  if (misfit == nullptr) return {};
  return t.fail(static_cast<std::int64_t>(misfit->demand),
                exhausted(Resource::table_page, static_cast<std::uint64_t>(needed),
                          static_cast<std::uint64_t>(t.pages.available()), misfit->id.value,
                          Option::max_table_pages));
}

/// Takes the blocks of all growths, or none.
Status BlockTables::Impl::Groups::take_blocks(Urgency urgency) {
  if (num_growths == first_growth) return {};
  for (std::size_t i = first_growth; i < num_growths; ++i) {
    for (std::size_t g = 0; g < size(); ++g) {
      const TableGrowth& growth = table_growths[i * size() + g];
      const std::int64_t wanted = growth.new_entries + (growth.tail == kNoBlock ? 0 : 1);
      if (wanted == 0) continue;
      growth_of_demand[num_demands] = static_cast<std::int32_t>(i);
      demands[num_demands++] = {.holder = growths[i].sequence->holder,
                                .count = static_cast<std::uint32_t>(wanted),
                                .urgency = growths[i].urgency,
                                .group = static_cast<std::int32_t>(g)};
      t.num_new_blocks += wanted;
    }
  }
  if (Status status = check_table_pages(); !status) return status;
  const auto size_of_all =
      static_cast<std::size_t>(std::min(t.num_new_blocks, t.manager->num_blocks()));
  const Result<std::int64_t> evicted = t.manager->allocate_each(
      std::span(demands.data(), num_demands), std::span(t.new_ids.data(), size_of_all),
      std::span(t.new_generations.data(), size_of_all), urgency);
  if (evicted) {
    note_evictions();
    return {};
  }
  const std::int64_t refused = t.manager->refused_demand();
  if (refused < 0) return evicted.status();
  const auto growth = static_cast<std::size_t>(growth_of_demand[static_cast<std::size_t>(refused)]);
  return t.fail(static_cast<std::int64_t>(growths[growth].demand), evicted.status());
}

/// The last block of a sequence in a group has been copied. The sequence releases it, or keeps it
/// for an undo.
void BlockTables::Impl::Groups::give_up_tail(const Grown& its, std::size_t g, BlockId copy) {
  const Sequence& s = *its.sequence;
  const Table& table = tables_of(its.id)[g];
  const auto index = static_cast<std::int32_t>((s.length - 1) / list[g].block_size);
  const BlockId block = table.tree.id_at(t.pages, index);
  const Generation generation = table.tree.generation_at(t.pages, index);
  copies[num_copies] = {table_id(list[g], block), table_id(list[g], copy)};
  copy_groups[num_copies++] = static_cast<std::int32_t>(g);
  if (t.can_undo) {
    kept[num_kept++] = {its.id, static_cast<std::int32_t>(g), index, block, generation, copy};
    return;
  }
  // Somebody else has a claim on the block, so this drops a reference and cannot free it.
  static_cast<void>(t.manager->release(s.holder, std::span<const BlockId>(&block, 1),
                                       std::span<const Generation>(&generation, 1)));
}

/// Adds the taken blocks to the tables of their sequences, in the order of the demands.
void BlockTables::Impl::Groups::apply_growths() {
  const BlockId* id = t.new_ids.data();
  const Generation* generation = t.new_generations.data();
  for (std::size_t i = first_growth; i < num_growths; ++i) {
    const Grown& its = growths[i];
    const std::span<Table> all = tables_of(its.id);
    if (its.owns_tails) its.sequence->claims_seen = t.claim_serial;
    its.sequence->room = 0;
    for (std::size_t g = 0; g < size(); ++g) {
      const TableGrowth& growth = table_growths[i * size() + g];
      Table& table = all[g];
      if (growth.tail != kNoBlock) {
        give_up_tail(its, g, *id);
        const auto index =
            static_cast<std::int32_t>((its.sequence->length - 1) / list[g].block_size);
        table.tree.generation_at(t.pages, index) = *generation++;
        table.tree.id_at(t.pages, index) = *id++;
        begin_block(*its.sequence, g, index);
        table.mirrored = std::min(table.mirrored, index);
      }
      add_blocks(table, g, id, generation, growth.new_entries);
      id += growth.new_entries;
      generation += growth.new_entries;
    }
  }
}

/// Writes the slots of tokens that enter another block.
void BlockTables::Impl::Groups::fill_blocks(const Sequence& s, std::size_t g, std::int64_t count,
                                            std::int64_t* slot) noexcept {
  const std::size_t place = slot_of(s.id) * size() + g;
  const Table& table = tables[place];
  std::int64_t position = s.length;
  const std::int64_t end = position + count;
  while (position < end) {
    if (position == table.fits_until) begin_block(s, g, position / list[g].block_size);
    const std::int64_t base = slot_bases[place];
    const std::int64_t here = std::min<std::int64_t>(end, table.fits_until);
    for (; position < here; ++position) *slot++ = base + position;
  }
}

/// Where fill writes. A compiler would read members again after each slot that is written.
struct BlockTables::Impl::Groups::Target {
  const std::int64_t* slot_bases;
  std::int64_t* slots;
  std::size_t num_groups;
  std::int64_t num_tokens;  // of the call
  std::span<const std::uint32_t> growing;
};

/// Adds tokens to a sequence within its room. They are tokens `first` and later of the call.
void BlockTables::Impl::Groups::fill(Sequence& s, std::int64_t count, std::int64_t first,
                                     std::size_t row, const Target& to) noexcept {
  const std::int64_t* const base = to.slot_bases + slot_of(s.id) * to.num_groups;
  for (const std::uint32_t g : to.growing) {
    const std::int64_t next = base[g] + s.length;
    std::int64_t* const slot = to.slots + g * to.num_tokens + first;
    for (std::int64_t i = 0; i < count; ++i) slot[i] = next + i;
  }
  if (states) states->write_over(s, count, row);
  s.length += static_cast<std::int32_t>(count);
  s.room -= static_cast<std::int32_t>(count);
}

/// Adds tokens to a sequence with too little room, whose tables have got the blocks.
void BlockTables::Impl::Groups::fill_changed(Sequence& s, std::int64_t count, std::int64_t first,
                                             std::size_t row) noexcept {
  if (states && count > 1) states->take_marks(s, count);
  const Table* const its = tables_of(s.id).data();
  for (const std::uint32_t g : growing) {
    std::int64_t* const to = slots.data() + g * t.num_new_tokens + first;
    if (count == 1 && s.length < its[g].fits_until) {
      *to = slot_bases[slot_of(s.id) * size() + g] + s.length;
    } else {
      fill_blocks(s, g, count, to);
    }
  }
  if (states) states->step(s, count, row);
  s.length += static_cast<std::int32_t>(count);
  note_room(s);
  if (s.length >= release_at[slot_of(s.id)]) note_due(s.id, row);
}

template <class Demands>
Result<AppendResult> BlockTables::Impl::Groups::append(const Demands& its, Urgency urgency) {
  if (Status s = check_enum(Resource::urgency, urgency, Urgency::admission); !s) return s;
  t.failed_demand = -1;
  settle();
  if (Status status = plan_append(its); !status) return status;
  if (num_shared_tails != 0) resolve_shared_tails();
  if (Status status = take_blocks(urgency); !status) return status;
  apply_growths();
  if (states) states->begin_step();
  const Target target{slot_bases.data(), slots.data(), size(), t.num_new_tokens, growing};
  std::int64_t first = 0;
  for (std::size_t i = 0; i < its.size(); ++i) {
    Sequence& s = t.sequences.get(its.id(i));
    t.grown[i] = {its.id(i), s.length};
    const std::int64_t count = its.tokens(i);
    if (count > 0 && count <= s.room) [[likely]] {
      fill(s, count, first, i, target);
    } else {
      fill_changed(s, count, first, i);
    }
    first += count;
    if (!t.report_rows) continue;
    t.rows[i] = {.slot = static_cast<std::int32_t>(slot_of(its.id(i))),
                 .length_tokens = s.length,
                 .num_new_tokens = static_cast<std::int32_t>(count),
                 .num_changed_blocks = s.num_behind};
  }
  for (std::int64_t* column = slots.data(); const Group& group : list) {
    if (!group.grows()) std::fill_n(column, t.num_new_tokens, -1);
    column += t.num_new_tokens;
  }
  t.copies_ever += num_copies;
  if (t.prefix != nullptr) t.tell_tokens(its);
  t.num_grown = its.size();
  t.is_undoable = t.can_undo;
  is_settled = false;
  t.tokens += t.num_new_tokens;
  return AppendResult{
      .slots = std::span(slots.data(), static_cast<std::size_t>(t.num_new_tokens) * size()),
      .copies = std::span(copies.data(), num_copies),
      .new_blocks = t.num_new_blocks,
      .rows = std::span(t.rows.data(), t.report_rows ? its.size() : 0),
      .copy_groups = std::span(copy_groups.data(), num_copies),
      .states = states ? states->end_step(its.size()) : std::span<const StateSlots>()};
}

Result<AppendResult> BlockTables::Impl::Groups::append(std::span<const AppendDemand> its,
                                                       Urgency urgency) {
  return append(ListedDemands{its}, urgency);
}

Result<AppendResult> BlockTables::Impl::Groups::append_one_each(std::span<const SequenceId> ids) {
  return append(OneEach{ids}, Urgency::growth);
}

Result<AppendResult> BlockTables::Impl::Groups::append_one_each(
    std::span<const SequenceId> ids, std::span<const std::int32_t> tokens) {
  return append(OneKnownEach{{ids}, tokens}, Urgency::growth);
}

}  // namespace kvarena
