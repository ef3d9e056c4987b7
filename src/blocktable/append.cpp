// Growth of sequences: plan (nothing changes), take blocks (all or nothing), apply (cannot fail).

#include "blocktable/block_tables_impl.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <limits>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxTokens = std::numeric_limits<std::int32_t>::max();

/// Demands as given.
struct ListedDemands {
  std::span<const AppendDemand> list;
  std::size_t size() const noexcept { return list.size(); }
  SequenceId id(std::size_t i) const noexcept { return list[i].sequence; }
  std::int64_t tokens(std::size_t i) const noexcept { return list[i].num_tokens; }
};

/// One token for each sequence.
struct OneEach {
  std::span<const SequenceId> list;
  std::size_t size() const noexcept { return list.size(); }
  SequenceId id(std::size_t i) const noexcept { return list[i]; }
  static constexpr std::int64_t tokens(std::size_t) noexcept { return 1; }
};

Status too_long(SequenceId id, std::int64_t length, std::int64_t max_length) noexcept {
  return {StatusCode::context_length_exceeded,
          Resource::sequence_length,
          0,
          id.value,
          static_cast<std::uint64_t>(length),
          static_cast<std::uint64_t>(max_length)};
}

}  // namespace

/// Records what a demand takes, when it takes anything.
void BlockTables::Impl::plan_growth(SequenceId id, Sequence& sequence, std::int64_t capacity,
                                    std::size_t demand, bool writes) {
  Growth growth{.demand = demand, .sequence = &sequence, .id = id};
  const std::int64_t missing = blocks_for(capacity) - sequence.table.num_entries;
  growth.new_entries = std::max<std::int64_t>(0, missing);
  if (writes && sequence.room > 0 && sequence.may_share_tail) {
    growth.tail = sequence.table.id_at(pages, sequence.filled_blocks - 1);
    growth.shares_tail = manager->reference_count(growth.tail) > 1;
    sequence.may_share_tail = growth.shares_tail;
  }
  if (growth.new_entries == 0 && !growth.shares_tail) return;
  if (growth.shares_tail) {
    shared_tails[num_shared_tails++] = {growth.tail, static_cast<std::uint32_t>(num_growths)};
  }
  growths[num_growths++] = growth;
}

template <class Demands>
Status BlockTables::Impl::plan_append(const Demands& demands) {
  ++calls;
  num_growths = num_shared_tails = num_copies = 0;
  num_new_tokens = num_new_blocks = 0;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    Sequence* sequence = sequences.find(demands.id(i));
    if (sequence == nullptr) return fail(index, not_found(Resource::sequence, demands.id(i).value));
    if (std::exchange(sequence->call_stamp, calls) == calls) {
      return fail(index, duplicate_argument(Resource::sequence, demands.id(i).value));
    }
    const std::int64_t tokens_wanted = demands.tokens(i);
    if (tokens_wanted < 0) {
      return fail(index,
                  invalid_argument(Resource::num_tokens, tokens_wanted, 0, max_append_tokens));
    }
    const std::int64_t length = sequence->length + tokens_wanted;
    if (length > sequence->max_length) {
      return fail(index, too_long(demands.id(i), length, sequence->max_length));
    }
    num_new_tokens += tokens_wanted;
    if (num_new_tokens > max_append_tokens) {
      return fail(index,
                  invalid_argument(Resource::num_tokens, num_new_tokens, 0, max_append_tokens));
    }
    if (tokens_wanted <= sequence->room && !sequence->may_share_tail) [[likely]]
      continue;
    if (tokens_wanted == 0) continue;
    plan_growth(demands.id(i), *sequence, length, i, true);
  }
  return {};
}

/// Of the sequences that share a last block in this call, all but the last holder copy it.
void BlockTables::Impl::resolve_shared_tails() {
  SharedTail* const end = shared_tails.data() + num_shared_tails;
  std::sort(shared_tails.data(), end);
  for (SharedTail* run = shared_tails.data(); run != end;) {
    std::int64_t sharers = manager->reference_count(run->block);
    const BlockId block = run->block;
    for (; run != end && run->block == block; ++run, --sharers) {
      growths[run->growth].shares_tail = sharers > 1;
    }
  }
}

/// Whether the manager has the blocks of all holder_demands. O(growths).
bool BlockTables::Impl::blocks_suffice(Urgency urgency) const {
  std::int64_t beyond_promises = 0;
  for (std::size_t g = 0; g < num_growths; ++g) {
    const Result<HolderReport> holder = manager->holder(holder_demands[g].holder);
    const std::int64_t promised = holder ? holder->reserved : 0;
    beyond_promises += std::max<std::int64_t>(0, holder_demands[g].count - promised);
  }
  return manager->can_allocate(beyond_promises, urgency);
}

/// Want of blocks is named before want of pages: the manager then refuses and explains.
Status BlockTables::Impl::check_pages(Urgency urgency) {
  std::int64_t needed = 0;
  const Growth* misfit = nullptr;
  for (std::size_t g = 0; g < num_growths; ++g) {
    const Growth& growth = growths[g];
    const std::int64_t before = growth.sequence->table.num_entries;
    if (growth.new_entries == 0) continue;
    needed += PageTree::pages_for(before + growth.new_entries) - PageTree::pages_for(before);
    if (misfit == nullptr && needed > pages.available()) misfit = &growth;
  }
  if (misfit == nullptr || !blocks_suffice(urgency)) return {};
  return fail(static_cast<std::int64_t>(misfit->demand),
              exhausted(Resource::table_page, static_cast<std::uint64_t>(needed),
                        static_cast<std::uint64_t>(pages.available()), misfit->id.value));
}

Status BlockTables::Impl::take_blocks(Urgency urgency) {
  if (num_growths == 0) return {};
  resolve_shared_tails();
  for (std::size_t g = 0; g < num_growths; ++g) {
    const std::int64_t wanted = growths[g].new_entries + (growths[g].shares_tail ? 1 : 0);
    holder_demands[g] = {growths[g].sequence->holder, static_cast<std::uint32_t>(wanted)};
    num_new_blocks += wanted;
  }
  if (Status status = check_pages(urgency); !status) return status;
  // More than the whole pool is refused for want of blocks before the spans are looked at.
  const auto size = static_cast<std::size_t>(std::min(num_new_blocks, manager->num_blocks()));
  const Result<std::int64_t> evicted = manager->allocate_each(
      std::span(holder_demands.data(), num_growths), std::span(new_ids.data(), size),
      std::span(new_generations.data(), size), urgency);
  if (evicted) return {};
  Status status = evicted.status();
  for (std::size_t g = 0; g < num_growths; ++g) {
    if (holder_demands[g].holder.value != status.subject) continue;
    status.subject = growths[g].id.value;
    return fail(static_cast<std::int64_t>(growths[g].demand), status);
  }
  return status;
}

/// Gives the taken blocks to their sequences, in order.
void BlockTables::Impl::apply_growths() {
  const BlockId* id = new_ids.data();
  const Generation* generation = new_generations.data();
  for (std::size_t g = 0; g < num_growths; ++g) {
    const Growth& growth = growths[g];
    Sequence& s = *growth.sequence;
    if (growth.shares_tail) {
      BlockId& place = s.table.id_at(pages, s.filled_blocks - 1);
      Generation& its = s.table.generation_at(pages, s.filled_blocks - 1);
      // The block has another holder, so this drops a reference and cannot free it.
      static_cast<void>(manager->release(s.holder, std::span(&place, 1), std::span(&its, 1)));
      copies[num_copies++] = {place, *id};
      place = *id++;
      its = *generation++;
      s.mirrored_blocks = std::min(s.mirrored_blocks, s.filled_blocks - 1);
      s.next_slot = place.value * block_size + (block_size - s.room);
      s.may_share_tail = false;
    }
    s.table.append(pages, id, generation, static_cast<std::int32_t>(growth.new_entries));
    id += growth.new_entries;
    generation += growth.new_entries;
    entries += growth.new_entries;
  }
  copies_ever += num_copies;
}

/// Adds tokens to a sequence whose table has room for them, writing their slots.
void BlockTables::Impl::fill(Sequence& s, std::int64_t count, std::int64_t*& slot) noexcept {
  s.length += static_cast<std::int32_t>(count);
  while (count > 0) {
    if (s.room == 0) {
      s.next_slot = s.table.id_at(pages, s.filled_blocks++).value * block_size;
      s.room = static_cast<std::int32_t>(block_size);
    }
    const std::int64_t run = std::min<std::int64_t>(count, s.room);
    for (std::int64_t i = 0; i < run; ++i) *slot++ = s.next_slot++;
    s.room -= static_cast<std::int32_t>(run);
    count -= run;
  }
}

/// Adds the tokens of every demand, and says what became of its sequence where that is asked for.
template <bool kReportsRows, class Demands>
void BlockTables::Impl::fill_all(const Demands& demands) noexcept {
  std::int64_t* slot = slots.data();
  AppendedRow* row = rows.data();
  for (std::size_t i = 0; i < demands.size(); ++i) {
    Sequence& s = *sequences.find(demands.id(i));
    fill(s, demands.tokens(i), slot);
    if constexpr (kReportsRows) {
      *row++ = {.slot = static_cast<std::int32_t>(SequenceTable::slot_of(demands.id(i))),
                .length_tokens = s.length,
                .num_new_tokens = static_cast<std::int32_t>(demands.tokens(i)),
                .num_changed_blocks = s.filled_blocks - s.mirrored_blocks};
    }
  }
}

template <class Demands>
Result<AppendResult> BlockTables::Impl::append(const Demands& demands, Urgency urgency) {
  failed_demand = -1;
  if (Status status = plan_append(demands); !status) return status;
  if (Status status = take_blocks(urgency); !status) return status;
  apply_growths();
  if (report_rows) {
    fill_all<true>(demands);
  } else {
    fill_all<false>(demands);
  }
  tokens += num_new_tokens;
  return AppendResult{.slots = std::span(slots.data(), static_cast<std::size_t>(num_new_tokens)),
                      .copies = std::span(copies.data(), num_copies),
                      .new_blocks = num_new_blocks,
                      .rows = std::span(rows.data(), report_rows ? demands.size() : 0)};
}

Result<AppendResult> BlockTables::append(std::span<const AppendDemand> demands, Urgency urgency) {
  return impl_->append(ListedDemands{demands}, urgency);
}

Result<AppendResult> BlockTables::append_one_each(std::span<const SequenceId> ids) {
  return impl_->append(OneEach{ids}, Urgency::growth);
}

std::int64_t BlockTables::failed_demand() const noexcept { return impl_->failed_demand; }

Status BlockTables::reserve_capacity(SequenceId id, std::int64_t capacity, Urgency urgency) {
  Impl& t = *impl_;
  Sequence* sequence = t.sequences.find(id);
  if (sequence == nullptr) return not_found(Resource::sequence, id.value);
  if (capacity < 0 || capacity > kMaxTokens) {
    return invalid_argument(Resource::capacity, capacity, 0, kMaxTokens);
  }
  if (capacity > sequence->max_length) return too_long(id, capacity, sequence->max_length);
  t.num_growths = t.num_shared_tails = t.num_copies = 0;
  t.num_new_blocks = 0;
  t.plan_growth(id, *sequence, capacity, 0, false);
  const std::int64_t failed_append = t.failed_demand;
  const Status status = t.take_blocks(urgency);
  t.failed_demand = failed_append;
  if (status) t.apply_growths();
  return status;
}

}  // namespace kvarena
