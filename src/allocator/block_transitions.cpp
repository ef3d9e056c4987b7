// The calls that change blocks: take, share, give up, fence, retire. Each either checks first or
// undoes what it did, so that a refused call changes nothing.

#include "allocator/block_manager_impl.hpp"
#include "base/range_checks.hpp"
#include "kvarena/base/violation.hpp"

#include <utility>

namespace kvarena {
namespace {

/// Ids and generations must be of equal number.
Status check_sizes(std::size_t ids, std::size_t generations) noexcept {
  if (ids == generations) return {};
  const auto expected = static_cast<std::int64_t>(ids);
  return invalid_argument(Resource::span_size, static_cast<std::int64_t>(generations), expected,
                          expected);
}

}  // namespace

/// Tells a second release of the same reference from an older handle by the generation.
Status BlockManager::Impl::refuse_handle(BlockId id, Generation generation) const noexcept {
  const auto subject = static_cast<std::uint64_t>(id.value);
  if (!pool.contains(id)) return not_found(Resource::block, subject);
  const std::uint32_t current = pool.record(id).generation;
  const bool released_last = pool.live_references(id) == 0 &&
                             (generation.value == current || generation.value + 1 == current);
  return {released_last ? StatusCode::double_release : StatusCode::stale_handle,
          Resource::block,
          Option::none,
          0,
          subject,
          generation.value,
          current};
}

/// A block that keeps fenced references becomes fenced; without them it is dropped.
bool BlockManager::Impl::release_one(BlockId id, Generation generation) noexcept {
  if (!pool.contains(id)) [[unlikely]]
    return false;
  BlockPool::Record& r = pool.record(id);
  if (r.generation != generation.value) [[unlikely]]
    return false;
  if ((r.word & BlockPool::kHeld) == 0 || (r.word & BlockPool::kCount) == 0) [[unlikely]]
    return false;
  if ((--r.word & BlockPool::kCount) != 0) return true;
  --pool.mutable_counts().referenced;
  if (fences.num_entries() != 0 && pool.fence_head(id) != BlockPool::kNoFence) {
    ++pool.mutable_counts().fenced;
  } else {
    pool.drop(id);
  }
  return true;
}

/// The block gets its live reference back, whatever state the release left it in.
void BlockManager::Impl::undo_release_one(BlockId id) noexcept {
  switch (pool.state(id)) {
    case BlockState::referenced: ++pool.record(id).word; return;
    case BlockState::fenced:
      ++pool.record(id).word;
      --pool.mutable_counts().fenced;
      break;
    case BlockState::free:
    case BlockState::evictable:
    case BlockState::offline: pool.undo_drop(id); break;
    case BlockState::absent: break;
  }
  ++pool.mutable_counts().referenced;
}

/// Keeps the accounts of the refusal, because they may have changed when explain() is called.
Status BlockManager::Impl::refuse(Resource resource, std::int64_t required, std::int64_t promised,
                                  Urgency urgency, std::uint64_t subject) noexcept {
  ++exhaustions;
  const std::int64_t could_be_had = promised + usable(urgency);
  refusal.requested = required;
  refusal.urgency = urgency;
  refusal.usable = could_be_had;
  refusal.promised = promised;
  refusal.missing = required - promised - left_for(urgency);
  refusal.stats = stats();
  describe_pages(refusal);
  return exhausted(resource, static_cast<std::uint64_t>(required),
                   static_cast<std::uint64_t>(could_be_had), subject);
}

/// Checks the demands and adds them up.
Status BlockManager::Impl::add_up(std::span<const HolderDemand> demands, Urgency urgency,
                                  DemandTotals& totals) noexcept {
  if (Status s = check_enum(Resource::urgency, urgency, Urgency::admission); !s) return s;
  ++calls;
  for (const HolderDemand& demand : demands) {
    const Urgency its = demand.urgency.value_or(urgency);
    if (Status s = check_enum(Resource::urgency, its, Urgency::admission); !s) return s;
    Holder* holder = holders.find(demand.holder);
    if (holder == nullptr) return not_found(Resource::holder, demand.holder.value);
    if (std::exchange(holder->call_stamp, calls) == calls) {
      return duplicate_argument(Resource::holder, demand.holder.value);
    }
    totals.blocks += demand.count;
    if (demand.count <= holder->reserved) continue;
    (its == Urgency::growth ? totals.for_growth : totals.for_admission) +=
        demand.count - holder->reserved;
  }
  return {};
}

/// Refuses demands that do not fit. Growth is served first: the misfit is the first demand for
/// growth past what growth may use, or else the first for admission past what admission may.
Status BlockManager::Impl::refuse_demands(std::span<const HolderDemand> demands, Urgency urgency,
                                          const DemandTotals& totals) noexcept {
  const bool growth_fits = totals.for_growth <= usable(Urgency::growth);
  const Urgency at_fault = growth_fits ? Urgency::admission : Urgency::growth;
  const std::int64_t room = usable(at_fault);
  std::int64_t taken = growth_fits ? totals.for_growth : 0;
  HolderId misfit = kNoHolder;
  for (const HolderDemand& demand : demands) {
    const std::int64_t promised = holders.find(demand.holder)->reserved;
    if (demand.urgency.value_or(urgency) != at_fault || demand.count <= promised) continue;
    taken += demand.count - promised;
    misfit = demand.holder;
    if (taken > room) break;
  }
  return refuse(Resource::block, totals.blocks, totals.blocks - totals.beyond_promises(),
                totals.urgency(), misfit.value);
}

Result<std::int64_t> BlockManager::Impl::allocate(std::span<const HolderDemand> demands,
                                                  std::span<BlockId> ids,
                                                  std::span<Generation> generations,
                                                  Urgency urgency) {
  if (pool.pages() != nullptr) return allocate_in_groups(demands, ids, generations, urgency);
  DemandTotals totals;
  if (Status s = add_up(demands, urgency, totals); !s) return s;
  if (totals.beyond_promises() > usable(totals.urgency())) {
    return refuse_demands(demands, urgency, totals);
  }
  const std::int64_t total = totals.blocks;
  if (Status s = check_sizes(ids.size(), generations.size()); !s) return s;
  if (static_cast<std::int64_t>(ids.size()) != total) {
    return invalid_argument(Resource::span_size, static_cast<std::int64_t>(ids.size()), total,
                            total);
  }
  const std::int64_t evicted = pool.take(ids.data(), generations.data(), total);
  for (const HolderDemand& demand : demands) {
    Holder& holder = *holders.find(demand.holder);
    consume_reservation(holder, demand.count);
    holder.references += demand.count;
  }
  references += total;
  allocations += static_cast<std::uint64_t>(total);
  evictions += static_cast<std::uint64_t>(evicted);
  num_evicted = static_cast<std::size_t>(evicted);
  note_peak();
  return evicted;
}

Status BlockManager::Impl::check_retain(BlockId id, Generation generation,
                                        std::size_t references_wanted) const {
  const auto subject = static_cast<std::uint64_t>(id.value);
  if (!pool.contains(id)) return not_found(Resource::block, subject);
  const BlockPool::Record& r = pool.record(id);
  const bool held = (r.word & BlockPool::kHeld) != 0;
  const bool live = held && (r.word & BlockPool::kCount) != 0;
  const auto to_be_found = [&] {
    return pool.content(id) == BlockContent::published && (r.word & BlockPool::kQuarantined) == 0;
  };
  if (r.generation != generation.value || !(live || to_be_found())) {
    return report_violation({StatusCode::stale_handle, Resource::block, Option::none, 0, subject,
                             generation.value, r.generation},
                            "BlockManager::retain", name.c_str());
  }
  const std::uint32_t left = BlockPool::kCount - (r.word & BlockPool::kCount);
  if (held && left <= references_wanted) return exhausted(Resource::block, references_wanted, left);
  return {};
}

Status BlockManager::Impl::retain(HolderId holder_id, std::span<const BlockId> ids,
                                  std::span<const Generation> generations) {
  if (Status s = check_sizes(ids.size(), generations.size()); !s) return s;
  Holder* holder = holders.find(holder_id);
  if (holder == nullptr) return not_found(Resource::holder, holder_id.value);
  std::int64_t revived = 0;
  for (std::size_t i = 0;; ++i) {
    i += pool.count_retainable(ids.subspan(i), generations.subspan(i), ids.size(), revived);
    if (i == ids.size()) break;
    if (Status s = check_retain(ids[i], generations[i], ids.size()); !s) return s;
    revived += pool.state(ids[i]) == BlockState::evictable ? 1 : 0;
  }
  if (pool.pages() != nullptr) return retain_in_groups(*holder, ids);
  if (revived > holder->reserved + usable(Urgency::growth)) {
    return refuse(Resource::block, revived, holder->reserved, Urgency::growth, holder_id.value);
  }
  ++claim_serial;
  revived = pool.retain(ids);
  consume_reservation(*holder, revived);
  holder->references += static_cast<std::int64_t>(ids.size());
  references += static_cast<std::int64_t>(ids.size());
  return {};
}

/// Releases block by block, and takes everything back at the first handle that is not live.
Status BlockManager::Impl::release(HolderId holder_id, std::span<const BlockId> ids,
                                   std::span<const Generation> generations) {
  if (Status s = check_sizes(ids.size(), generations.size()); !s) return s;
  Holder* holder = holders.find(holder_id);
  if (holder == nullptr) return not_found(Resource::holder, holder_id.value);
  if (pool.pages() != nullptr) return release_in_groups(holder_id, ids, generations);
  if (EvictionOrder* order = pool.order(); order != nullptr) {
    // An order does not take a block back, so the call must not fail after its first block.
    if (Status s = check_release(*holder, holder_id, ids, generations); !s) return s;
    order->begin_run(holder_id.value);
  }
  const auto count = static_cast<std::int64_t>(ids.size());
  for (std::size_t i = 0;; ++i) {
    i += pool.release_leading(ids.subspan(i), generations.subspan(i), fences.num_entries() != 0);
    if (i == ids.size()) break;
    if (release_one(ids[i], generations[i])) continue;
    const Status refused = refuse_handle(ids[i], generations[i]);
    while (i-- > 0) undo_release_one(ids[i]);
    return report_violation(refused, "BlockManager::release", name.c_str());
  }
  if (holder->references < count) {
    for (std::size_t i = ids.size(); i-- > 0;) undo_release_one(ids[i]);
    return report_violation(
        {StatusCode::reference_underflow, Resource::holder, Option::none, 0, holder_id.value,
         ids.size(), static_cast<std::uint64_t>(holder->references)},
        "BlockManager::release", name.c_str());
  }
  holder->references -= count;
  references -= count;
  releases += ids.size();
  return {};
}

Status BlockManager::Impl::release_after(Ticket ticket, HolderId holder_id,
                                         std::span<const BlockId> ids,
                                         std::span<const Generation> generations) {
  if (!fences.is_open(ticket)) return not_found(Resource::ticket, ticket.value);
  if (fences.entries_left() < static_cast<std::int64_t>(ids.size())) {
    return exhausted(Resource::fence_entry, ids.size(),
                     static_cast<std::uint64_t>(fences.entries_left()), 0,
                     Option::max_fence_entries);
  }
  if (Status s = check_sizes(ids.size(), generations.size()); !s) return s;
  // The ticket takes the references before the holder gives them up, so that no block is dropped in
  // between. After a refused handle the ticket gives them back.
  ++claim_serial;
  const std::uint32_t last_entry = fences.last_entry(ticket);
  std::size_t fenced = 0;
  for (; fenced < ids.size() && pool.contains(ids[fenced]); ++fenced) {
    const BlockPool::Record& r = pool.record(ids[fenced]);
    if (r.generation != generations[fenced].value || pool.live_references(ids[fenced]) == 0) break;
    fences.add(ticket, ids[fenced], pool.fence_head(ids[fenced]));
  }
  Status status = fenced == ids.size() ? release(holder_id, ids, generations)
                                       : refuse_handle(ids[fenced], generations[fenced]);
  if (status.is_ok()) return status;
  if (fenced < ids.size())
    static_cast<void>(report_violation(status, "BlockManager::release_after", name.c_str()));
  fences.undo_adds(ticket, last_entry,
                   [this](BlockId id) -> std::uint32_t& { return pool.fence_head(id); });
  return status;
}

/// A block is dropped with its last fence entry, unless it has live references.
Status BlockManager::Impl::retire(Ticket ticket) {
  if (!fences.is_open(ticket)) return not_found(Resource::ticket, ticket.value);
  EvictionOrder* order = pool.order();
  if (order != nullptr) {
    order->end_run();
    order->begin_run(ticket.value);
  }
  fences.retire(
      ticket, [this](BlockId id) -> std::uint32_t& { return pool.fence_head(id); },
      [this](BlockId id) {
        const bool last =
            pool.fence_head(id) == BlockPool::kNoFence && pool.live_references(id) == 0;
        if (!last) return;
        pool.count_fenced(id, -1);
        pool.drop(id);
      });
  if (order != nullptr) order->end_run();
  return {};
}

}  // namespace kvarena
