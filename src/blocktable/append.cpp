// Growth of sequences in three parts: plan (changes nothing), take blocks (all or nothing), apply
// (cannot fail).

#include "base/range_checks.hpp"
#include "blocktable/append_demands.hpp"
#include "blocktable/block_tables_impl.hpp"
#include "blocktable/group_tables.hpp"
#include "blocktable/tell_tokens.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <optional>
#include <utility>

namespace kvarena {

/// Computes which blocks a sequence needs for `capacity` tokens.
BlockTables::Impl::Growth BlockTables::Impl::growth_of(SequenceId id, Sequence& sequence,
                                                       std::int64_t capacity, std::size_t demand) {
  Growth growth{
      .demand = demand, .sequence = &sequence, .id = id, .old_entries = sequence.table.num_entries};
  growth.new_entries = std::max<std::int64_t>(0, blocks_for(capacity) - growth.old_entries);
  return growth;
}

/// Returns whether new tokens may be written into the sequence's last block.
bool BlockTables::Impl::owns_tail(Sequence& sequence) {
  if (sequence.room == 0) return true;  // new tokens begin a new block
  const BlockId tail = sequence.table.id_at(pages, sequence.filled_blocks - 1);
  if (manager->claims(tail) > 1) return false;
  sequence.claims_seen = claim_serial;
  return true;
}

/// Checks every demand and collects the growths: the demands that need new blocks or a copy.
template <class Demands>
Status BlockTables::Impl::plan_append(const Demands& demands) {
  ++calls;
  num_growths = num_shared_tails = num_copies = 0;
  num_new_blocks = 0;
  claim_serial = claims_of_others();
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    Sequence* sequence = sequences.find(demands.id(i));
    if (sequence == nullptr) return fail(index, not_found(Resource::sequence, demands.id(i).value));
    if (std::exchange(sequence->call_stamp, calls) == calls) {
      return fail(index, duplicate_argument(Resource::sequence, demands.id(i).value));
    }
    const std::optional<Urgency> urgency = demands.urgency(i);
    if (urgency) {
      if (Status s = check_enum(Resource::urgency, *urgency, Urgency::admission); !s) {
        return fail(index, s);
      }
    }
    const std::int64_t tokens_wanted = demands.tokens(i);
    if (tokens_wanted < 0) {
      return fail(index,
                  invalid_argument(Resource::num_tokens, tokens_wanted, 0, max_append_tokens));
    }
    if (Status s = check_values(demands.values(i), tokens_wanted); !s) return fail(index, s);
    const std::int64_t length = sequence->length + tokens_wanted;
    if (length > sequence->max_length) {
      return fail(index, too_long(demands.id(i), length, sequence->max_length));
    }
    num_tokens += tokens_wanted;
    if (num_tokens > max_append_tokens) {
      return fail(index, too_many_tokens(num_tokens, max_append_tokens, demands.id(i)));
    }
    if (tokens_wanted <= sequence->room && sequence->claims_seen == claim_serial) [[likely]]
      continue;
    if (Status s = check_imported(demands.id(i), *sequence); !s) return fail(index, s);
    if (tokens_wanted == 0) continue;
    Growth growth = growth_of(demands.id(i), *sequence, length, i);
    growth.urgency = urgency;
    if (sequence->claims_seen != claim_serial && !owns_tail(*sequence)) {
      growth.copies_tail = true;
      growth.tail = sequence->table.id_at(pages, sequence->filled_blocks - 1);
      shared_tails[num_shared_tails++] = {growth.tail, static_cast<std::uint32_t>(num_growths)};
    }
    if (growth.new_entries > 0 || growth.copies_tail) growths[num_growths++] = growth;
  }
  num_new_tokens = num_tokens;
  return {};
}

/// Decides which sequences of this call copy a last block that they share. They copy it in demand
/// order, until one sequence is left with the only claim on it.
void BlockTables::Impl::resolve_shared_tails() {
  SharedTail* const end = shared_tails.data() + num_shared_tails;
  std::sort(shared_tails.data(), end);
  for (SharedTail* run = shared_tails.data(); run != end;) {
    std::int64_t claims = manager->claims(run->block);
    const BlockId block = run->block;
    for (; run != end && run->block == block; ++run, --claims) {
      growths[run->growth].copies_tail = claims > 1;
    }
  }
}

/// Returns whether the manager has the blocks of all holder_demands, those that floors would let go
/// included. O(growths), and the blocks that floors keep where these are needed.
bool BlockTables::Impl::blocks_suffice(std::span<const Growth> its, Urgency urgency) const {
  std::int64_t beyond_promises = 0;
  Urgency of_all = Urgency::growth;
  for (std::size_t g = 0; g < its.size(); ++g) {
    const Result<HolderReport> holder = manager->holder(holder_demands[g].holder);
    const std::int64_t promised = holder ? holder->reserved : 0;
    if (holder_demands[g].count <= promised) continue;
    beyond_promises += holder_demands[g].count - promised;
    of_all = std::max(of_all, its[g].urgency.value_or(urgency));
  }
  if (manager->can_allocate(beyond_promises, of_all)) return true;
  return prefix != nullptr && prefix->accounts().keeps_any() &&
         missing_of_floors(its, urgency) >= 0;
}

/// Checks that there are pages for all growths. When blocks are missing too, it returns ok, so that
/// the manager refuses the call and explains.
Status BlockTables::Impl::check_pages(std::span<const Growth> its, Urgency urgency) {
  std::int64_t needed = 0;
  const Growth* misfit = nullptr;
  for (const Growth& growth : its) {
    const std::int64_t before = growth.old_entries;
    if (growth.new_entries == 0) continue;
    needed += PageTree::pages_to_grow(before, growth.new_entries);
    if (misfit == nullptr && needed > pages.available()) misfit = &growth;
  }
  if (misfit == nullptr || !blocks_suffice(its, urgency)) return {};
  return fail(static_cast<std::int64_t>(misfit->demand),
              exhausted(Resource::table_page, static_cast<std::uint64_t>(needed),
                        static_cast<std::uint64_t>(pages.available()), misfit->id.value,
                        Option::max_table_pages));
}

/// Says which growths have taken evictable blocks: free blocks are handed out before them.
void BlockTables::Impl::name_takers(std::span<const Growth> its, std::int64_t evicted) noexcept {
  std::int64_t free = num_new_blocks - evicted;
  for (std::size_t g = 0; g < its.size(); ++g) {
    const std::int64_t count = holder_demands[g].count;
    if (count > free) prefix->add_taker(its[g].id, count - free);
    free = std::max<std::int64_t>(0, free - count);
  }
}

/// Takes the blocks of all growths, or none.
Status BlockTables::Impl::take_blocks(std::span<Growth> its, Urgency urgency) {
  if (its.empty()) return {};
  for (std::size_t g = 0; g < its.size(); ++g) {
    const std::int64_t wanted = its[g].new_entries + (its[g].copies_tail ? 1 : 0);
    holder_demands[g] = {its[g].sequence->holder, static_cast<std::uint32_t>(wanted),
                         its[g].urgency};
    num_new_blocks += wanted;
    if (can_undo) its[g].promised = manager->holder(its[g].sequence->holder)->reserved;
  }
  if (Status status = check_pages(its, urgency); !status) return status;
  if (prefix != nullptr && prefix->accounts().keeps_any()) {
    // The manager then has what it is asked for, or refuses.
    prefix->use_floors(missing_of_floors(its, urgency));
  }
  // The manager refuses more blocks than the whole pool before it looks at the spans.
  const auto size = static_cast<std::size_t>(std::min(num_new_blocks, manager->num_blocks()));
  const Result<std::int64_t> evicted = manager->allocate_each(
      std::span(holder_demands.data(), its.size()), std::span(new_ids.data(), size),
      std::span(new_generations.data(), size), urgency);
  if (evicted) {
    if (prefix != nullptr && *evicted != 0) {
      name_takers(its, *evicted);
      prefix->evicted(std::span(new_ids.data(), size).last(static_cast<std::size_t>(*evicted)));
    }
    return {};
  }
  Status status = evicted.status();
  for (std::size_t g = 0; g < its.size(); ++g) {
    if (holder_demands[g].holder.value != status.subject) continue;
    status.subject = its[g].id.value;
    return fail(static_cast<std::int64_t>(its[g].demand), status);
  }
  return status;
}

/// The sequence's last block has been copied. Releases the sequence's reference on it, or keeps it
/// for an undo.
void BlockTables::Impl::give_up_tail(const Growth& growth, BlockId copy) {
  const Sequence& s = *growth.sequence;
  const std::int32_t index = s.filled_blocks - 1;
  const Generation generation = s.table.generation_at(pages, index);
  copies[num_copies++] = {growth.tail, copy};
  if (can_undo) {
    kept_tails[num_kept_tails++] = {growth.id, index, growth.tail, generation, copy};
    return;
  }
  // Somebody else has a claim on the block, so this drops a reference and cannot free it.
  static_cast<void>(
      manager->release(s.holder, std::span(&growth.tail, 1), std::span(&generation, 1)));
}

/// Adds the taken blocks to the tables of their sequences, in order.
void BlockTables::Impl::apply_growths(std::span<const Growth> its) {
  const BlockId* id = new_ids.data();
  const Generation* generation = new_generations.data();
  for (const Growth& growth : its) {
    Sequence& s = *growth.sequence;
    if (growth.copies_tail) {
      give_up_tail(growth, *id);
      const std::int32_t index = s.filled_blocks - 1;
      s.table.id_at(pages, index) = *id;
      s.table.generation_at(pages, index) = *generation++;
      s.mirrored_blocks = std::min(s.mirrored_blocks, index);
      s.next_slot = id->value * block_size + (block_size - s.room);
      s.claims_seen = claim_serial;
      ++id;
    }
    s.table.append(pages, id, generation, static_cast<std::int32_t>(growth.new_entries));
    id += growth.new_entries;
    generation += growth.new_entries;
    entries += growth.new_entries;
  }
}

/// Adds tokens that fill whole blocks of one leaf of the table, but not the last block of `count`
/// tokens. Returns their number. Requires a sequence whose last block is full.
[[gnu::noinline]] std::int64_t BlockTables::Impl::fill_blocks(Sequence& s, std::int64_t count,
                                                              std::int64_t* slot) noexcept {
  const std::int64_t on_leaf = kPageEntries - (s.filled_blocks & kPageMask);
  const std::int64_t blocks = std::min((count - 1) / block_size, on_leaf);
  const BlockId* const ids = &s.table.id_at(pages, s.filled_blocks);
  for (std::int64_t b = 0; b < blocks; ++b, slot += block_size) {
    const std::int64_t first = ids[b].value * block_size;
    if (block_size == kUsualBlockSize) {
      for (std::int64_t i = 0; i < kUsualBlockSize; ++i) slot[i] = first + i;
    } else {
      for (std::int64_t i = 0; i < block_size; ++i) slot[i] = first + i;
    }
  }
  s.filled_blocks += static_cast<std::int32_t>(blocks);
  return blocks * block_size;
}

/// Adds tokens to a sequence whose table has room for them, and writes their slots.
void BlockTables::Impl::fill(Sequence& s, std::int64_t count, std::int64_t*& slot) noexcept {
  s.length += static_cast<std::int32_t>(count);
  while (count > 0) {
    if (s.room == 0) {
      while (count > block_size) {
        const std::int64_t filled = fill_blocks(s, count, slot);
        slot += filled;
        count -= filled;
      }
      s.next_slot = s.table.id_at(pages, s.filled_blocks++).value * block_size;
      s.room = static_cast<std::int32_t>(block_size);
      s.claims_seen = claim_serial;
    }
    const std::int64_t run = std::min<std::int64_t>(count, s.room);
    const std::int64_t first = s.next_slot;
    for (std::int64_t i = 0; i < run; ++i) slot[i] = first + i;
    slot += run;
    s.next_slot = first + run;
    s.room -= static_cast<std::int32_t>(run);
    count -= run;
  }
}

/// Adds the tokens of every demand, and reports the sequence's new row if asked.
template <bool kReportsRows, class Demands>
void BlockTables::Impl::fill_all(const Demands& demands) noexcept {
  std::int64_t* slot = slots.data();
  AppendedRow* row = rows.data();
  for (std::size_t i = 0; i < demands.size(); ++i) {
    Sequence& s = *sequences.find(demands.id(i));
    if constexpr (kReportsRows) grown[i] = {demands.id(i), s.length};
    fill(s, demands.tokens(i), slot);
    if constexpr (kReportsRows) {
      *row++ = {.slot = static_cast<std::int32_t>(SequenceTable::slot_of(demands.id(i))),
                .length_tokens = s.length,
                .num_new_tokens = static_cast<std::int32_t>(demands.tokens(i)),
                .num_changed_blocks = s.filled_blocks - s.mirrored_blocks};
    }
  }
}

/// Plans, takes blocks and applies; the steps of both public appends.
template <class Demands>
Result<AppendResult> BlockTables::Impl::append(const Demands& demands, Urgency urgency) {
  if (Status s = check_enum(Resource::urgency, urgency, Urgency::admission); !s) return s;
  failed_demand = -1;
  if (can_undo) settle();
  if (Status status = plan_append(demands); !status) return status;
  if (num_shared_tails != 0) resolve_shared_tails();
  const std::span<Growth> its(growths.data(), num_growths);
  if (Status status = take_blocks(its, urgency); !status) return status;
  apply_growths(its);
  copies_ever += num_copies;
  if (report_rows) {
    fill_all<true>(demands);
  } else {
    fill_all<false>(demands);
  }
  if (prefix != nullptr) tell_tokens(demands);
  num_grown = demands.size();
  is_undoable = can_undo;
  tokens += num_new_tokens;
  return AppendResult{.slots = std::span(slots.data(), static_cast<std::size_t>(num_new_tokens)),
                      .copies = std::span(copies.data(), num_copies),
                      .new_blocks = num_new_blocks,
                      .rows = std::span(rows.data(), report_rows ? demands.size() : 0)};
}

Result<AppendResult> BlockTables::append(std::span<const AppendDemand> demands, Urgency urgency) {
  if (impl_->groups) return impl_->groups->append(demands, urgency);
  return impl_->append(ListedDemands{demands}, urgency);
}

Result<AppendResult> BlockTables::append_one_each(std::span<const SequenceId> ids) {
  if (impl_->groups) return impl_->groups->append_one_each(ids);
  return impl_->append(OneEach{ids}, Urgency::growth);
}

Result<AppendResult> BlockTables::append_one_each(std::span<const SequenceId> ids,
                                                  std::span<const std::int32_t> tokens) {
  if (tokens.size() != ids.size()) {
    return invalid_argument(Resource::span_size, std::ssize(tokens), std::ssize(ids),
                            std::ssize(ids));
  }
  if (impl_->groups) return impl_->groups->append_one_each(ids, tokens);
  return impl_->append(OneKnownEach{{ids}, tokens}, Urgency::growth);
}

std::int64_t BlockTables::failed_demand() const noexcept { return impl_->failed_demand; }

}  // namespace kvarena
