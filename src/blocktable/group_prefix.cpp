// The prefix cache with groups of layers: a sequence begins with a prefix only where every group
// has what it needs there.

#include "allocator/own_pages.hpp"
#include "blocktable/group_tables.hpp"
#include "blocktable/state_tables.hpp"

#include <algorithm>
#include <array>

namespace kvarena {

/// Cuts a match to the longest length at which each group has what a sequence needs. The match's
/// nodes are in the scratch memory of append. A companion that lacks rules out all lengths that
/// need it, so none is looked at twice.
void BlockTables::Impl::Groups::fit_prefix(PrefixMatch& found) const noexcept {
  const PrefixCompanions& companions = *t.prefix->companions();
  const std::int64_t block_size = list[registered].block_size;
  std::int64_t longest = found.blocks;
  for (bool is_whole = false; longest > 0 && !is_whole;) {
    is_whole = true;
    for (std::size_t g = 0; g < size() && is_whole; ++g) {
      if (g == registered) continue;
      const std::int64_t needed = first_needed(list[g], longest * block_size);
      for (std::int64_t i = longest; i-- > needed && is_whole;) {
        if (companions.has(t.new_ids[static_cast<std::size_t>(i)], g)) continue;
        is_whole = false;
        longest = i;
      }
    }
  }
  if (longest == found.blocks) return;
  found.stop = PrefixStop::other_group;
  found.removal = PrefixMatch{}.removal;
  found.removal_serial = 0;
  found.removal_by = kNoSequence;
  found.removal_time = 0;
  found.blocks = longest;
  found.tokens = longest * block_size;
}

/// Gives an empty sequence the blocks of a match that fits, with those that a window keeps beyond
/// what it needs. All are retained in one call, so that a refusal changes nothing.
Status BlockTables::Impl::Groups::take_prefix(Sequence& s, const PrefixMatch& found) {
  const PrefixCompanions& companions = *t.prefix->companions();
  const std::span<BlockId> ids(t.new_ids.data(), t.new_ids.size());
  const std::span<Generation> generations(t.new_generations.data(), ids.size());
  std::array<std::int64_t, kMaxBlockGroups> first{};
  std::array<std::int64_t, kMaxBlockGroups> end{};
  std::array<std::size_t, kMaxBlockGroups> from{};
  auto next = static_cast<std::size_t>(found.blocks);
  for (std::size_t g = 0; g < size(); ++g) {
    end[g] = found.blocks;
    if (g == registered) continue;
    from[g] = next;
    std::int64_t at = first_needed(list[g], found.tokens);
    if (list[g].grows()) {
      const std::int64_t keeps = list[g].first_kept(found.tokens);
      while (at > keeps && companions.has(ids[static_cast<std::size_t>(at - 1)], g)) --at;
      first[g] = at;
    } else {
      end[g] = states->find(g)->parts;
    }
    for (; at < found.blocks; ++at) {
      next += companions.copy(ids[static_cast<std::size_t>(at)], g, ids.subspan(next),
                              generations.subspan(next));
    }
  }
  if (Status e = check_new_tables(first, end, s.id.value); !e) return e;
  if (Status e = t.manager->retain(s.holder, ids.first(next), generations.first(next)); !e) {
    return e;
  }
  const std::span<Table> its = tables_of(s.id);
  for (std::size_t g = 0; g < size(); ++g) {
    its[g].first_held = static_cast<std::int32_t>(first[g]);
    its[g].tree.append_absent(t.pages, its[g].first_held);
    if (list[g].grows()) end_slots += first[g] * list[g].block_size;
    add_blocks(its[g], g, ids.data() + from[g], generations.data() + from[g], end[g] - first[g]);
  }
  s.length = static_cast<std::int32_t>(found.tokens);
  t.tokens += found.tokens;
  if (states) states->note_first(s.id, found.tokens);
  place_tails(s);
  note_release(s);
  return {};
}

/// Gives the nodes that a sequence has published, from block `before` on, what its tables have for
/// them, and the states that it has kept since.
void BlockTables::Impl::Groups::attach_companions(Sequence& s, std::int32_t before) noexcept {
  const auto slot = static_cast<std::uint32_t>(slot_of(s.id));
  const std::int32_t after = t.prefix->chain(slot).published;
  if (after <= before) return;
  const std::span<BlockId> nodes(t.new_ids.data(), static_cast<std::size_t>(after - before));
  t.prefix->copy_nodes(slot, before, nodes);
  PrefixCompanions& companions = *t.prefix->companions();
  for (std::size_t g = 0; g < size(); ++g) {
    if (g == registered || !list[g].grows()) continue;
    const Table& table = tables_of(s.id)[g];
    for (std::int32_t i = std::max(before, table.first_held); i < after; ++i) {
      const BlockId node = nodes[static_cast<std::size_t>(i - before)];
      if (node == kNoBlock) continue;
      const BlockId id = table.tree.id_at(std::as_const(t.pages), i);
      const Generation generation = table.tree.generation_at(t.pages, i);
      companions.attach(node, g, std::span(&id, 1), std::span(&generation, 1));
    }
  }
  if (!states) return;
  const CheckpointList& records = states->checkpoints;
  for (std::int32_t r = records.first(slot); r != CheckpointList::kNone; r = records.next(r)) {
    const std::int64_t length = records.length(r);
    if (length > before * list[registered].block_size) attach_state(s, length);
  }
}

/// A state belongs to the node that ends at its length.
void BlockTables::Impl::Groups::attach_state(const Sequence& s, std::int64_t length) noexcept {
  const std::int64_t block_size = list[registered].block_size;
  const std::int32_t record = states->live_record(s.id, length);
  if (record == CheckpointList::kNone || length % block_size != 0) return;
  const auto slot = static_cast<std::uint32_t>(slot_of(s.id));
  const auto index = static_cast<std::int32_t>(length / block_size - 1);
  BlockId node = kNoBlock;
  t.prefix->copy_nodes(slot, index, std::span(&node, 1));
  if (node == kNoBlock) return;
  for (const States::Of& of : states->list) {
    t.prefix->companions()->attach(node, of.group, states->ids_of(record, of),
                                   states->generations_of(record, of));
  }
}

/// A state behind the last full block of a prompt is found when the prompt goes on, as the turns of
/// a chat do. One where the blocks of a longer prefix end is found by the next that shares it. When
/// no checkpoints are asked for, the kernel may not be able to write them.
void BlockTables::Impl::Groups::ask_for_states(Sequence& s, std::int64_t prompt,
                                               const PrefixMatch& found) noexcept {
  if (!states || states->every == 0) return;
  const std::int64_t block_size = list[registered].block_size;
  states->ask(s.id, prompt / block_size * block_size, found.registered_tokens);
  place_tails(s);
  note_release(s);
}

/// The sequence that took block number `i` of those that the last allocation evicted.
SequenceId BlockTables::Impl::Groups::taker_of(std::size_t i) const noexcept {
  const std::size_t demand = OwnPages::demand_of_evicted(*t.manager, i);
  return growths[static_cast<std::size_t>(growth_of_demand[demand])].id;
}

/// What the last allocation evicted is not found any more. The manager's list ends with the next
/// allocation.
void BlockTables::Impl::Groups::note_evictions(SequenceId by) noexcept {
  if (t.prefix == nullptr) return;
  const std::span<const BlockId> ids = t.manager->evicted();
  std::ranges::copy(ids, evicted_ids.begin());
  for (std::size_t i = 0; i < ids.size();) {
    const std::size_t first = i;
    const SequenceId taker = by != kNoSequence ? by : taker_of(i);
    while (i < ids.size() && (by != kNoSequence || taker_of(i) == taker)) ++i;
    t.prefix->add_taker(taker, static_cast<std::int64_t>(i - first));
  }
  t.prefix->evicted(std::span(evicted_ids.data(), ids.size()));
}

}  // namespace kvarena
