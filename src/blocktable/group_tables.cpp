// Tables of groups: the life of a sequence.

#include "blocktable/group_tables.hpp"
#include "blocktable/state_extras.hpp"
#include "blocktable/state_tables.hpp"

#include "base/range_checks.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace kvarena {
namespace {

/// The most encoder tokens of a sequence.
std::int64_t most_cross_tokens(std::span<const TableGroup> groups) noexcept {
  std::int64_t most = std::numeric_limits<std::int32_t>::max();
  bool any = false;
  for (const TableGroup& group : groups) {
    if (group.kind != PagedKind::cross) continue;
    any = true;
    most = std::min(most, group.limit_tokens);
  }
  return any ? most : 0;
}

}  // namespace

/// Checks groups one by one, and against those of the manager.
Status BlockTables::Impl::Groups::check(const BlockManager& manager,
                                        const BlockTablesOptions& options) noexcept {
  const std::span<const TableGroup> groups = options.groups;
  const auto expected = static_cast<std::int64_t>(manager.groups().size());
  const auto count = static_cast<std::int64_t>(groups.size());
  if (count != expected) return invalid_argument(Resource::num_groups, count, expected, expected);
  for (const TableGroup& group : groups) {
    if (Status s = validate(group.retention()); !s) return s;
  }
  return check_states(groups, options.checkpoint_every_tokens);
}

BlockTables::Impl::Groups::~Groups() = default;

BlockTables::Impl::Groups::Groups(Impl& its_tables, const BlockTablesOptions& options)
    : t(its_tables),
      pages_of_pool(OwnPages::pages(*t.manager)),
      num_groups(options.groups.size()),
      tables((static_cast<std::size_t>(options.max_sequences) +
              static_cast<std::size_t>(options.max_pins)) *
             options.groups.size()),
      slot_bases(static_cast<std::size_t>(options.max_sequences) * options.groups.size()),
      cross_tokens(static_cast<std::size_t>(options.max_sequences)),
      promised(static_cast<std::size_t>(options.max_sequences)),
      release_at(static_cast<std::size_t>(options.max_sequences)),
      due(static_cast<std::size_t>(options.max_sequences)),
      growths(static_cast<std::size_t>(options.max_sequences) + 1),
      table_growths(growths.size() * options.groups.size()),
      demands(table_growths.size()),
      growth_of_demand(table_growths.size()),
      shared_tails(table_growths.size()),
      copies(table_growths.size()),
      copy_groups(table_growths.size()),
      slots(static_cast<std::size_t>(options.max_append_tokens) * options.groups.size()),
      kept(table_growths.size()),
      view_entries(static_cast<std::size_t>(options.max_table_pages << kPageShift)) {
  if (options.prefix_cache.is_on) {
    registered = PrefixCache::registered_group(options.groups);
    evicted_ids = LazyArray<BlockId>(static_cast<std::size_t>(t.manager->num_blocks()));
  }
  const std::span<const BlockGroup> carved = t.manager->groups();
  for (std::size_t g = 0; g < options.groups.size(); ++g) {
    const TableGroup& spec = options.groups[g];
    list.push_back({.spec = spec,
                    .retention = spec.retention(),
                    .block_size = spec.block_size_tokens,
                    .blocks_per_page = carved[g].blocks_per_page,
                    .is_cross = spec.kind == PagedKind::cross,
                    .is_state = spec.kind == PagedKind::state});
    if (!list.back().grows()) continue;
    ++num_growing;
    growing.push_back(static_cast<std::uint32_t>(g));
    if (spec.kind != PagedKind::full) leaving.push_back(growing.back());
  }
  t.max_cross_tokens = most_cross_tokens(options.groups);
  if (!States::any_of(options.groups)) return;
  states = std::make_unique<States>(*this, options);
  const std::size_t most =
      table_growths.size() + growths.size() * static_cast<std::size_t>(states->parts_of_all);
  copies = LazyArray<BlockCopy>(most);
  copy_groups = LazyArray<std::int32_t>(most);
}

std::int64_t BlockTables::Impl::Groups::host_bytes(std::int64_t num_blocks,
                                                   std::int64_t num_table_pages,
                                                   const BlockTablesOptions& options) noexcept {
  const auto groups = static_cast<std::int64_t>(options.groups.size());
  constexpr std::size_t kTableBytes =
      sizeof(TableGrowth) + sizeof(HolderDemand) + 2 * sizeof(std::int32_t) + sizeof(SharedTail) +
      sizeof(BlockCopy) + sizeof(KeptBlock) + sizeof(Table) + sizeof(std::int64_t);
  constexpr std::size_t kSequenceBytes =
      2 * sizeof(std::int32_t) + 2 * sizeof(std::int64_t) + sizeof(Grown);
  const std::int64_t of_sequence =
      groups * static_cast<std::int64_t>(kTableBytes) + static_cast<std::int64_t>(kSequenceBytes);
  return options.max_sequences * of_sequence +
         options.max_pins * groups * static_cast<std::int64_t>(sizeof(Table)) +
         options.max_append_tokens * groups * static_cast<std::int64_t>(sizeof(std::int64_t)) +
         (num_table_pages << kPageShift) * static_cast<std::int64_t>(sizeof(BlockId)) +
         (options.prefix_cache.is_on ? num_blocks * static_cast<std::int64_t>(sizeof(BlockId))
                                     : 0) +
         States::host_bytes(num_blocks, options);
}

Status BlockTables::Impl::Groups::check_group(std::int32_t group) const noexcept {
  const auto last = static_cast<std::int64_t>(size()) - 1;
  if (group >= 0 && group <= last) return {};
  return invalid_argument(Resource::num_groups, group, 0, last);
}

Result<SequenceId> BlockTables::Impl::Groups::insert(const SequenceOptions& options,
                                                     std::uint64_t parent_owner) {
  const Result<SequenceId> id = t.insert(options, parent_owner);
  if (!id) return id;
  std::ranges::fill(tables_of(*id), Table{});
  cross_tokens[slot_of(*id)] = options.cross_tokens;
  set_promise(*id, 0);
  if (states) states->begin(*id);
  note_release(t.sequences.get(*id));
  return id;
}

void BlockTables::Impl::Groups::place_tails(Sequence& s) noexcept {
  const std::span<Table> its = tables_of(s.id);
  s.claims_seen = 0;
  for (std::size_t g = 0; g < size(); ++g) {
    const Group& group = list[g];
    if (!group.grows()) continue;
    its[g].fits_until = 0;
    if (s.length > 0) begin_block(s, g, (s.length - 1) / group.block_size);
  }
  if (states) states->place(s);
  note_room(s);
}

void BlockTables::Impl::Groups::begin_block(const Sequence& s, std::size_t g,
                                            std::int64_t index) noexcept {
  const Group& group = list[g];
  const std::size_t place = slot_of(s.id) * size() + g;
  Table& table = tables[place];
  const BlockId id = table_id(group, table.tree.id_at(t.pages, static_cast<std::int32_t>(index)));
  slot_bases[place] = (id.value - index) * group.block_size;
  table.fits_until =
      static_cast<std::int32_t>(std::min<std::int64_t>((index + 1) * group.block_size, kMaxTokens));
}

BlockTables::Impl::Groups::Room BlockTables::Impl::Groups::room_of(
    const Sequence& s) const noexcept {
  constexpr std::int64_t kNoLimit = std::numeric_limits<std::int32_t>::max();
  std::int64_t until = std::min(kNoLimit, release_at[slot_of(s.id)] - 1);
  std::uint8_t num_behind = 0;
  const Table* table = tables_of(s.id).data();
  for (const Group& group : list) {
    if (!group.is_cross) until = std::min<std::int64_t>(until, table->fits_until);
    if (is_behind(group, *table, s.length)) ++num_behind;
    ++table;
  }
  return {static_cast<std::int32_t>(std::max<std::int64_t>(0, until - s.length)), num_behind};
}

void BlockTables::Impl::Groups::note_room(Sequence& s) noexcept {
  const Room room = room_of(s);
  s.room = room.tokens;
  s.num_behind = room.num_behind;
}

/// A window gives up its first block when its last token is out of reach, a chunk with the first
/// token of the next one.
void BlockTables::Impl::Groups::note_release(Sequence& s) noexcept {
  std::int64_t first = kNever;
  const std::span<const Table> its = tables_of(s.id);
  for (const std::uint32_t g : leaving) {
    const Group& group = list[g];
    const std::int64_t held = its[g].first_held;
    const std::int64_t limit = group.retention.limit_tokens;
    if (group.retention.kind == PagedKind::window) {
      first =
          std::min(first, (held + 1) * group.block_size + limit + group.retention.rollback_tokens);
    } else {
      first = std::min(first, (held * group.block_size / limit + 1) * limit + 1);
    }
  }
  if (states) first = std::min(first, states->next_work(s));
  release_at[slot_of(s.id)] = first;
  settles_all = settles_all || !is_settled;
  note_room(s);
}

// ---- references --------------------------------------------------------------------------------

void BlockTables::Impl::Groups::add_blocks(Table& table, std::size_t group, const BlockId* ids,
                                           const Generation* generations,
                                           std::int64_t count) noexcept {
  table.tree.append(t.pages, ids, generations, static_cast<std::int32_t>(count));
  t.entries += count;
  if (list[group].grows()) end_slots += count * list[group].block_size;
}

Status BlockTables::Impl::Groups::share(const Table& from, Table& to, std::size_t group,
                                        HolderId holder, std::int64_t first, std::int64_t end) {
  if (first == end) return {};
  to.first_held = static_cast<std::int32_t>(first);
  to.tree.append_absent(t.pages, to.first_held);
  if (list[group].grows()) end_slots += first * list[group].block_size;
  while (first < end) {
    const auto place = static_cast<std::int32_t>(first & kPageMask);
    const std::int32_t leaf =
        from.tree.leaf_page(t.pages, static_cast<std::int32_t>(first >> kPageShift));
    const std::int64_t count = std::min<std::int64_t>(kPageEntries - place, end - first);
    const BlockId* const ids = t.pages.ids(leaf) + place;
    const Generation* const generations = t.pages.generations(leaf) + place;
    const auto size_here = static_cast<std::size_t>(count);
    const Status status =
        t.manager->retain(holder, std::span(ids, size_here), std::span(generations, size_here));
    if (!status) return status;
    add_blocks(to, group, ids, generations, count);
    first += count;
  }
  return {};
}

Status BlockTables::Impl::Groups::release_tail(HolderId holder, Table& table, std::size_t group,
                                               std::int64_t keep, Ticket ticket) {
  std::array<BlockId, kPageEntries> ids;
  std::array<Generation, kPageEntries> generations;
  PageTree& tree = table.tree;
  const std::int64_t block_size = list[group].grows() ? list[group].block_size : 0;
  const std::int64_t last_kept = std::max<std::int64_t>(keep, table.first_held);
  while (tree.num_entries > last_kept) {
    const std::int64_t on_leaf = tree.on_last_leaf();
    const std::int64_t count = std::min(on_leaf, tree.num_entries - last_kept);
    const std::int64_t first = on_leaf - count;
    std::reverse_copy(t.pages.ids(tree.last_leaf) + first, t.pages.ids(tree.last_leaf) + on_leaf,
                      ids.begin());
    std::reverse_copy(t.pages.generations(tree.last_leaf) + first,
                      t.pages.generations(tree.last_leaf) + on_leaf, generations.begin());
    const std::span<const BlockId> last_first(ids.data(), static_cast<std::size_t>(count));
    const std::span<const Generation> their(generations.data(), last_first.size());
    const Status status = ticket == kNoTicket
                              ? t.manager->release(holder, last_first, their)
                              : t.manager->release_after(ticket, holder, last_first, their);
    if (!status) return status;
    tree.remove_last(t.pages, static_cast<std::int32_t>(count));
    t.entries -= count;
    end_slots -= count * block_size;
    table.mirrored = std::min(table.mirrored, tree.num_entries);
  }
  if (keep != 0) return {};
  table.mirrored = 0;
  end_slots -= tree.num_entries * block_size;
  tree.clear(t.pages);
  table.first_held = 0;
  return {};
}

/// The holder has the references, so this cannot fail.
void BlockTables::Impl::Groups::release_front(HolderId holder, Table& table,
                                              std::int64_t first) noexcept {
  while (table.first_held < first) {
    const std::int32_t place = table.first_held & kPageMask;
    const std::int32_t leaf = table.first_held >> kPageShift;
    const std::int32_t page = table.tree.leaf_page(t.pages, leaf);
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(kPageEntries - place, first - table.first_held));
    BlockId* const ids = t.pages.ids(page) + place;
    static_cast<void>(
        t.manager->release(holder, std::span<const BlockId>(ids, count),
                           std::span<const Generation>(t.pages.generations(page) + place, count)));
    std::fill_n(ids, count, kNoBlock);
    table.first_held += static_cast<std::int32_t>(count);
    t.entries -= static_cast<std::int64_t>(count);
    if ((table.first_held & kPageMask) == 0) table.tree.drop_leaf(t.pages, leaf);
  }
}

/// Gives `ticket` its own reference on an entry's block. The caller has checked the ticket.
Status BlockTables::Impl::Groups::fence_tail(const Sequence& s, const Table& table,
                                             std::int64_t index, Ticket ticket) {
  const auto place = static_cast<std::int32_t>(index);
  const BlockId id = table.tree.id_at(t.pages, place);
  const Generation generation = table.tree.generation_at(t.pages, place);
  const std::span<const BlockId> ids(&id, 1);
  const std::span<const Generation> generations(&generation, 1);
  if (Status status = t.manager->retain(s.holder, ids, generations); !status) return status;
  return t.manager->release_after(ticket, s.holder, ids, generations);
}

std::int64_t BlockTables::Impl::Groups::num_held_by(SequenceId id) const noexcept {
  std::int64_t held = num_kept_of(id);
  for (const Table& table : tables_of(id)) held += table.num_held();
  return held;
}

/// Checks that there are table pages for new tables.
Status BlockTables::Impl::Groups::check_new_tables(std::span<const std::int64_t> absent,
                                                   std::span<const std::int64_t> ends,
                                                   std::uint64_t subject) const noexcept {
  std::int64_t needed = 0;
  for (std::size_t g = 0; g < size(); ++g) needed += PageTree::pages_for_new(absent[g], ends[g]);
  if (needed <= t.pages.available()) return {};
  return exhausted(Resource::table_page, static_cast<std::uint64_t>(needed),
                   static_cast<std::uint64_t>(t.pages.available()), subject,
                   Option::max_table_pages);
}

}  // namespace kvarena
