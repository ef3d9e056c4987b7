// The functions of BlockTables that answer questions: lookup, views, figures, invariants.

#include "allocator/release_probe.hpp"
#include "base/out_of_memory.hpp"
#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

Status violated(Invariant invariant, Resource resource, std::uint64_t subject,
                std::int64_t expected, std::int64_t found) noexcept {
  return {StatusCode::invariant_violated,       resource, Option::none,
          static_cast<std::int32_t>(invariant), subject,  static_cast<std::uint64_t>(expected),
          static_cast<std::uint64_t>(found)};
}

/// Marks the pages of a tree. Returns false when a page is out of range or marked already.
bool mark_pages(const TablePages& pool, std::int32_t page, std::int32_t level, std::int32_t leaves,
                std::vector<bool>& marked) {
  if (page < 0 || page >= pool.num_pages() || marked[static_cast<std::size_t>(page)]) return false;
  marked[static_cast<std::size_t>(page)] = true;
  if (level == 0) return true;
  const std::int32_t below = std::int32_t{1} << (kPageShift * (level - 1));  // leaves below one
                                                                             // child
  for (std::int32_t child = 0; child * below < leaves; ++child) {
    const std::int32_t left = std::min(below, leaves - child * below);
    if (!mark_pages(pool, pool.ids(page)[child].value, level - 1, left, marked)) return false;
  }
  return true;
}

}  // namespace

Result<SequenceInfo> BlockTables::info(SequenceId id) const {
  const Sequence* s = impl_->sequences.find(id);
  if (s == nullptr) return not_found(Resource::sequence, id.value);
  if (impl_->groups) return impl_->groups->info(id, *s);
  const std::int64_t max_length = s->max_length;
  const std::uint64_t slot = SequenceTable::slot_of(id);
  const PrefixChain& chain = impl_->chain_of(id);
  return SequenceInfo{
      .length_tokens = s->length,
      .num_blocks = s->table.num_entries,
      .max_length_tokens = max_length == std::numeric_limits<std::int32_t>::max() ? 0 : max_length,
      .waste_tokens = s->table.num_entries * impl_->block_size - s->length,
      .holder = s->holder,
      .owner = impl_->owners[slot],
      .import_state = s->import_state,
      .known_tokens = chain.known,
      .registered_blocks = chain.blocks,
      .published_blocks = chain.published};
}

/// Returns the sequence or pin of these tables that a holder stands for, or nullptr.
const Sequence* BlockTables::Impl::sequence_of(const HolderReport& holder) const noexcept {
  const SequenceId id(holder.number);
  for (const SequenceTable* table : {&sequences, &pins}) {
    const Sequence* found = table->find(id);
    if (found != nullptr && found->holder == holder.holder) return found;
  }
  return nullptr;
}

/// Calls `visit` with all block ids that a holder with a sequence or pin here holds: page by page
/// those of its table, then the ones that its sequence keeps for an undo.
template <class Visit>
void BlockTables::Impl::for_each_held(const HolderReport& holder, Visit visit) const {
  const Sequence& sequence = *sequence_of(holder);
  if (groups) return groups->for_each_held(sequence, visit);
  for (std::int32_t leaf = 0; leaf < sequence.table.num_leaves(); ++leaf) {
    const std::int64_t first = static_cast<std::int64_t>(leaf) << kPageShift;
    const std::int64_t left = sequence.table.num_entries - first;
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(kPageEntries, left));
    visit(std::span<const BlockId>(pages.ids(sequence.table.leaf_page(pages, leaf)), count));
  }
  if (sequences.find(sequence.id) != &sequence) return;  // a pin
  for (std::size_t i = 0; i < num_kept_tails; ++i) {
    const KeptTail& kept = kept_tails[i];
    if (kept.id == sequence.id) visit(std::span<const BlockId>(&kept.block, 1));
  }
}

/// Fills in how many blocks come back when the largest holders end, one after the other.
void BlockTables::Impl::count_returning(Explanation& e) const noexcept {
  std::size_t counted = 0;
  std::int64_t returned = 0;
  for (; counted < e.num_largest; ++counted) {
    const HolderReport& holder = e.largest[counted];
    if (sequence_of(holder) == nullptr) break;
    for_each_held(holder, [&](std::span<const BlockId> ids) {
      returned += ReleaseProbe::lower(*manager, ids);
    });
    returned += holder.reserved;
    e.returning[counted] = returned;
  }
  for (std::size_t i = 0; i < counted; ++i) {
    for_each_held(e.largest[i],
                  [&](std::span<const BlockId> ids) { ReleaseProbe::raise(*manager, ids); });
  }
}

Explanation BlockTables::explain(std::int64_t requested, Urgency urgency,
                                 bool scans) const noexcept {
  Explanation e = impl_->manager->explain(requested, urgency);
  impl_->count_returning(e);
  impl_->count_salts(e, scans);
  return e;
}

Explanation BlockTables::explain(const Status& refused) const noexcept {
  Explanation e = impl_->manager->explain(refused);
  impl_->count_returning(e);
  impl_->count_salts(e, true);
  return e;
}

Status BlockTables::Impl::check_group(std::int32_t group) const noexcept {
  if (groups) return groups->check_group(group);
  return group == 0 ? Status{} : invalid_argument(Resource::num_groups, group, 0, 0);
}

Result<BlockId> BlockTables::lookup(SequenceId id, std::int64_t index, std::int32_t group) const {
  const Sequence* s = impl_->sequences.find(id);
  if (s == nullptr) return not_found(Resource::sequence, id.value);
  if (Status e = impl_->check_group(group); !e) return e;
  if (impl_->groups) return impl_->groups->lookup(id, index, group);
  if (index < 0 || index >= s->table.num_entries) {
    return invalid_argument(Resource::block_index, index, 0, s->table.num_entries - 1);
  }
  return s->table.id_at(impl_->pages, static_cast<std::int32_t>(index));
}

Result<std::int64_t> BlockTables::slot_of(SequenceId id, std::int64_t index,
                                          std::int32_t group) const {
  const Sequence* s = impl_->sequences.find(id);
  if (s == nullptr) return not_found(Resource::sequence, id.value);
  if (Status e = impl_->check_group(group); !e) return e;
  if (impl_->groups) return impl_->groups->slot_of(id, index, group);
  if (index < 0 || index >= s->length) {
    return invalid_argument(Resource::token_index, index, 0, s->length - 1);
  }
  const std::int64_t size = impl_->block_size;
  const BlockId block = s->table.id_at(impl_->pages, static_cast<std::int32_t>(index / size));
  return block.value * size + index % size;
}

Result<std::int64_t> BlockTables::Impl::copy_blocks(const Sequence& s,
                                                    std::span<BlockId> out) const {
  const std::int64_t count = s.table.num_entries;
  if (static_cast<std::int64_t>(out.size()) < count) {
    return invalid_argument(Resource::span_size, static_cast<std::int64_t>(out.size()), count,
                            std::numeric_limits<std::int32_t>::max());
  }
  for (std::int32_t leaf = 0; leaf < s.table.num_leaves(); ++leaf) {
    const std::int64_t first = static_cast<std::int64_t>(leaf) << kPageShift;
    std::copy_n(pages.ids(s.table.leaf_page(pages, leaf)),
                std::min<std::int64_t>(kPageEntries, count - first), out.begin() + first);
  }
  return count;
}

Result<std::int64_t> BlockTables::blocks_of(SequenceId id, std::span<BlockId> out,
                                            std::int32_t group) const {
  const Sequence* s = impl_->sequences.find(id);
  if (s == nullptr) return not_found(Resource::sequence, id.value);
  if (Status e = impl_->check_group(group); !e) return e;
  if (impl_->groups) {
    return impl_->groups->copy_blocks(impl_->groups->tables_of(id)[static_cast<std::size_t>(group)],
                                      out);
  }
  return impl_->copy_blocks(*s, out);
}

/// Lists the leaf pages of each row, so that the view reads the tables in place.
Result<BatchView> BlockTables::view(std::span<const SequenceId> ids, std::int32_t group) {
  Impl& t = *impl_;
  if (t.groups) return t.groups->view(ids, group);
  if (Status s = t.check_group(group); !s) return s;
  ++t.calls;
  std::int64_t num_pages = 0;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    Sequence* s = t.sequences.find(ids[row]);
    if (s == nullptr) return not_found(Resource::sequence, ids[row].value);
    if (std::exchange(s->call_stamp, t.calls) == t.calls) {
      return duplicate_argument(Resource::sequence, ids[row].value);
    }
    t.view_row_offsets[row] = num_pages;
    t.view_lengths[row] = s->length;
    t.view_num_blocks[row] = s->filled_blocks;
    for (std::int32_t leaf = 0; leaf << kPageShift < s->filled_blocks; ++leaf) {
      t.view_pages[static_cast<std::size_t>(num_pages++)] = s->table.leaf_page(t.pages, leaf);
    }
  }
  const auto num_rows = static_cast<std::int32_t>(ids.size());
  return BatchView{.tables = {.entries = t.pages.all_ids(),
                              .pages = t.view_pages.data(),
                              .row_offsets = t.view_row_offsets.data(),
                              .page_shift = kPageShift,
                              .num_rows = num_rows},
                   .seq_lens = t.view_lengths.data(),
                   .num_blocks = t.view_num_blocks.data(),
                   .num_rows = num_rows};
}

TableStats BlockTables::stats() const noexcept {
  const Impl& t = *impl_;
  return {.sequences = t.sequences.size(),
          .tokens = t.tokens,
          .entries = t.entries,
          .waste_tokens = t.groups ? t.groups->waste_tokens() : t.entries * t.block_size - t.tokens,
          .pages_used = t.pages.used(),
          .pages_total = t.pages.num_pages(),
          .sequences_ever = t.sequences_ever,
          .copies_on_write = t.copies_ever,
          .pins = t.pins.size(),
          .pinned_entries = t.pinned_entries};
}

std::vector<SequenceId> BlockTables::sequences() const noexcept try {
  std::vector<SequenceId> ids;
  ids.reserve(static_cast<std::size_t>(impl_->sequences.size()));
  impl_->sequences.for_each([&ids](SequenceId id, const Sequence&) { ids.push_back(id); });
  return ids;
} catch (const std::bad_alloc&) {
  return {};
}

/// Checks one sequence: its length, its holder's references, and every entry of its table.
Status BlockTables::Impl::check_sequence(SequenceId id, const Sequence& s) const {
  const std::int64_t count = s.table.num_entries;
  if (s.length > count * block_size || s.filled_blocks != blocks_for(s.length)) {
    return violated(Invariant::sequence_length, Resource::sequence, id.value, s.length,
                    count * block_size);
  }
  return check_entries(s, num_kept_of(id), Resource::sequence, id.value);
}

/// Checks the references and the entries of a sequence, which holds `kept` blocks more, or of a
/// pin.
Status BlockTables::Impl::check_entries(const Sequence& s, std::int64_t kept, Resource resource,
                                        std::uint64_t subject) const {
  const std::int64_t count = s.table.num_entries;
  const Result<HolderReport> holder = manager->holder(s.holder);
  if (!holder || holder->references != count + kept) {
    return violated(Invariant::table_counts, resource, subject, count + kept,
                    holder ? holder->references : -1);
  }
  for (std::int64_t index = 0; index < count; ++index) {
    const std::int32_t page =
        s.table.leaf_page(pages, static_cast<std::int32_t>(index >> kPageShift));
    const BlockId block = pages.ids(page)[index & kPageMask];
    const Generation generation = pages.generations(page)[index & kPageMask];
    const bool exists = block.value >= 0 && block.value < manager->num_blocks();
    if (!exists || manager->reference_count(block) == 0 ||
        manager->generation(block) != generation) {
      return violated(Invariant::table_entries, resource, subject, index, block.value);
    }
  }
  return {};
}

Status BlockTables::Impl::check_prefix() const {
  if (prefix == nullptr) return {};
  return prefix->check(sequences, pages, [this](const Sequence& s) -> const PageTree& {
    return groups ? groups->registered_table(s.id).tree : s.table;
  });
}

/// Marks the pages of all tables: a page that is marked twice has two owners.
Status BlockTables::check_invariants() const try {
  const Impl& t = *impl_;
  if (t.groups) return t.groups->check_invariants();
  std::vector<bool> marked(static_cast<std::size_t>(t.pages.num_pages()));
  std::int64_t tokens = 0;
  std::int64_t entries = 0;
  std::int64_t pinned = 0;
  Status first;
  const auto is_whole = [&](const Sequence& s) {
    return s.table.num_entries == 0 ||
           mark_pages(t.pages, s.table.root, s.table.depth, s.table.num_leaves(), marked);
  };
  t.sequences.for_each([&](SequenceId id, const Sequence& s) {
    if (!first) return;
    tokens += s.length;
    entries += s.table.num_entries;
    first = is_whole(s) ? t.check_sequence(id, s)
                        : violated(Invariant::table_pages, Resource::sequence, id.value, 1, 0);
  });
  t.pins.for_each([&](SequenceId, const Sequence& pin) {
    if (!first) return;
    pinned += pin.table.num_entries;
    const std::uint64_t holder = pin.holder.value;
    first = is_whole(pin) ? t.check_entries(pin, 0, Resource::holder, holder)
                          : violated(Invariant::table_pages, Resource::holder, holder, 1, 0);
  });
  if (!first) return first;
  const auto used = std::count(marked.begin(), marked.end(), true);
  if (used != t.pages.used()) {
    return violated(Invariant::table_pages, Resource::table_page, 0, t.pages.used(), used);
  }
  if (pinned != t.pinned_entries) {
    return violated(Invariant::table_counts, Resource::holder, 0, t.pinned_entries, pinned);
  }
  if (tokens != t.tokens || entries != t.entries) {
    return violated(Invariant::table_counts, Resource::num_tokens, 0, t.tokens, tokens);
  }
  return t.check_prefix();
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace kvarena
