// Growth of sequences with groups, in three parts as without groups: plan, take the blocks of all
// groups in one call, apply.

#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"
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
    const auto last = static_cast<std::int32_t>(list[g].block_of(s.length - 1));
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
  const auto index = static_cast<std::int32_t>(list[g].block_of(s.length - 1));
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
        const auto index = static_cast<std::int32_t>(list[g].block_of(its.sequence->length - 1));
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

}  // namespace kvarena
