// Appends to sequences with groups: checks, the growths (group_growth.cpp), and the slots of the
// new tokens. A sequence within its room takes none of the slow ways.

#include "base/range_checks.hpp"
#include "blocktable/append_demands.hpp"
#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"
#include "blocktable/tell_tokens.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {

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
  // A compiler would read members again after each record that is written.
  const std::uint64_t stamp = t.calls;
  const std::uint64_t claims = t.claim_serial;
  const std::int64_t most_tokens = t.max_append_tokens;
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < its.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const SequenceId id = its.id(i);
    Sequence* s = t.sequences.find(id);
    if (s == nullptr) return t.fail(index, not_found(Resource::sequence, id.value));
    if (std::exchange(s->call_stamp, stamp) == stamp) {
      return t.fail(index, duplicate_argument(Resource::sequence, id.value));
    }
    if (its.urgency(i)) {
      if (Status e = check_enum(Resource::urgency, *its.urgency(i), Urgency::admission); !e) {
        return t.fail(index, e);
      }
    }
    const std::int64_t wanted = its.tokens(i);
    if (wanted < 0) {
      return t.fail(index, invalid_argument(Resource::num_tokens, wanted, 0, most_tokens));
    }
    if (Status e = check_values(its.values(i), wanted); !e) return t.fail(index, e);
    const std::int64_t length = s->length + wanted;
    if (length > s->max_length) return t.fail(index, too_long(id, length, s->max_length));
    num_tokens += wanted;
    if (num_tokens > most_tokens) {
      return t.fail(index, too_many_tokens(num_tokens, most_tokens, id));
    }
    const bool claims_are_known = s->claims_seen == claims;
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

/// Writes the slots of tokens that enter another block.
void BlockTables::Impl::Groups::fill_blocks(const Sequence& s, std::size_t g, std::int64_t count,
                                            std::int64_t* slot) noexcept {
  const std::size_t place = slot_of(s.id) * size() + g;
  const Table& table = tables[place];
  std::int64_t position = s.length;
  const std::int64_t end = position + count;
  while (position < end) {
    if (position == table.fits_until) begin_block(s, g, list[g].block_of(position));
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
/// `kGrowing` is the number of groups that get slots; 0: any.
template <std::size_t kGrowing>
void BlockTables::Impl::Groups::fill(Sequence& s, std::int64_t count, std::int64_t first,
                                     std::size_t row, const Target& to) noexcept {
  const std::int64_t* const base = to.slot_bases + slot_of(s.id) * to.num_groups;
  const std::size_t num_growing = kGrowing == 0 ? to.growing.size() : kGrowing;
  for (std::size_t k = 0; k < num_growing; ++k) {
    const std::uint32_t g = to.growing[k];
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
    if (count != 1) {
      fill_blocks(s, g, count, to);
      continue;
    }
    if (s.length == its[g].fits_until) begin_block(s, g, list[g].block_of(s.length));
    *to = slot_bases[slot_of(s.id) * size() + g] + s.length;
  }
  if (states) states->step(s, count, row);
  s.length += static_cast<std::int32_t>(count);
  note_room(s);
  if (s.length >= release_at[slot_of(s.id)]) note_due(s.id, row);
}

/// Adds the tokens of all rows.
template <std::size_t kGrowing, class Demands>
void BlockTables::Impl::Groups::fill_rows(const Demands& its) noexcept {
  const Target target{slot_bases.data(), slots.data(), size(), t.num_new_tokens, growing};
  Impl::Grown* const grown = t.grown.data();
  AppendedRow* const rows = t.report_rows ? t.rows.data() : nullptr;
  std::int64_t first = 0;
  for (std::size_t i = 0; i < its.size(); ++i) {
    Sequence& s = t.sequences.get(its.id(i));
    grown[i] = {its.id(i), s.length};
    const std::int64_t count = its.tokens(i);
    if (count > 0 && count <= s.room) [[likely]] {
      fill<kGrowing>(s, count, first, i, target);
    } else {
      fill_changed(s, count, first, i);
    }
    first += count;
    if (rows == nullptr) continue;
    rows[i] = {.slot = static_cast<std::int32_t>(slot_of(its.id(i))),
               .length_tokens = s.length,
               .num_new_tokens = static_cast<std::int32_t>(count),
               .num_changed_blocks = s.num_behind};
  }
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
  switch (growing.size()) {
    case 1: fill_rows<1>(its); break;
    case 2: fill_rows<2>(its); break;
    default: fill_rows<0>(its); break;
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
