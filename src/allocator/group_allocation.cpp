// Allocation in a pool with groups. It checks first, by counting, so that what it then does cannot
// fail.

#include "allocator/block_manager_impl.hpp"
#include "base/range_checks.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
constexpr std::size_t kPrefetchDistance = 8;
constexpr std::int64_t kFreePagesAhead = 16;

Status check_sizes(std::size_t ids, std::size_t generations, std::int64_t expected) noexcept {
  for (const std::size_t size : {ids, generations}) {
    const auto given = static_cast<std::int64_t>(size);
    if (given != expected) {
      return invalid_argument(Resource::span_size, given, expected, expected);
    }
  }
  return {};
}

/// What a demand takes while pages can be had: slots of its holder's own page, then new pages.
struct Wanted {
  std::int64_t own;
  std::int64_t pages;
};

inline Wanted wanted_of(const PagePool& pages, const HolderDemand& demand) noexcept {
  const std::int64_t own = std::min<std::int64_t>(
      demand.count, pages.own_slots(HolderTable::slot_of(demand.holder), demand.group));
  if (own == demand.count) return {own, 0};
  const auto m = static_cast<std::uint32_t>(pages.blocks_per_page(demand.group));
  const auto left = static_cast<std::uint32_t>(demand.count - own);
  return {own, m == 1 ? left : left / m + (left % m != 0 ? 1 : 0)};
}

/// What a demand adds to the blocks of its group that others can take one by one. A holder that
/// keeps its pages adds none of theirs; of another one's own page what it takes is not left over,
/// and what it leaves of its last page is.
std::int64_t leftover_of(const PagePool& pages, const HolderDemand& demand, const Wanted& wanted,
                         std::int64_t missing) noexcept {
  const std::int64_t turned = (wanted.pages - missing) * pages.blocks_per_page(demand.group);
  if (!pages.keeps_pages(HolderTable::slot_of(demand.holder))) return turned - demand.count;
  return std::min<std::int64_t>(0, wanted.own + turned - demand.count);
}

/// The pages promised to a holder that its demands of one call have not used yet. The demands of a
/// holder follow one another.
class Promise {
 public:
  /// Takes `count` pages, from the promise as far as it goes. Returns how many are beyond it.
  std::int64_t take(HolderId id, const Holder& holder, std::int64_t count) noexcept {
    if (id != holder_) left_ = holder.reserved;
    holder_ = id;
    const std::int64_t promised = std::min(left_, count);
    left_ -= promised;
    return count - promised;
  }

 private:
  HolderId holder_ = kNoHolder;
  std::int64_t left_ = 0;
};

}  // namespace

/// Checks the demands and adds them up, in pages.
Status BlockManager::Impl::add_up_pages(std::span<const HolderDemand> demands, Urgency urgency,
                                        DemandTotals& totals) noexcept {
  if (Status s = check_enum(Resource::urgency, urgency, Urgency::admission); !s) return s;
  ++calls;
  refused_demand = -1;
  const PagePool& pages = *pool.pages();
  const auto last_group = static_cast<std::int64_t>(pages.num_groups()) - 1;
  Promise promise;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const HolderDemand& demand = demands[i];
    if (i + kPrefetchDistance < demands.size()) {
      const HolderDemand& ahead = demands[i + kPrefetchDistance];
      const std::uint64_t slot = HolderTable::slot_of(ahead.holder);
      const bool has_tail = slot < static_cast<std::uint64_t>(holders.capacity()) &&
                            ahead.group >= 0 && ahead.group <= last_group;
      if (has_tail) pages.prefetch(slot, ahead.group);
    }
    const Urgency its = demand.urgency.value_or(urgency);
    if (Status s = check_enum(Resource::urgency, its, Urgency::admission); !s) return s;
    if (demand.group < 0 || demand.group > last_group) {
      return invalid_argument(Resource::num_groups, demand.group, 0, last_group);
    }
    Holder* holder = holders.find(demand.holder);
    if (holder == nullptr) return not_found(Resource::holder, demand.holder.value);
    const bool follows =
        i > 0 && demands[i - 1].holder == demand.holder && demands[i - 1].group < demand.group;
    if (std::exchange(holder->call_stamp, calls) == calls && !follows) {
      return duplicate_argument(Resource::holder, demand.holder.value);
    }
    const Wanted wanted = wanted_of(pages, demand);
    totals.blocks += demand.count;
    if (wanted.pages == 0) continue;
    totals.pages += wanted.pages;
    (its == Urgency::growth ? totals.for_growth : totals.for_admission) +=
        promise.take(demand.holder, *holder, wanted.pages);
  }
  return {};
}

/// Serves the demands of one urgency with what they may use. Returns the first group that has not
/// enough, or -1, and sets refused_demand to the first demand that did not get its blocks.
std::int32_t BlockManager::Impl::group_in_want(std::span<const HolderDemand> demands,
                                               Urgency urgency, Urgency served) noexcept {
  const PagePool& pages = *pool.pages();
  std::array<std::int64_t, kMaxBlockGroups> leftover{};
  for (std::size_t g = 0; g < pages.num_groups(); ++g) {
    leftover[g] = pages.num_leftover(static_cast<std::int32_t>(g));
  }
  std::array<std::int64_t, kMaxBlockGroups> misfit{};  // by group: the first demand in want
  std::int64_t budget = usable(served);
  Promise promise;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    const HolderDemand& demand = demands[i];
    const Wanted wanted = wanted_of(pages, demand);
    const std::int64_t beyond =
        promise.take(demand.holder, *holders.find(demand.holder), wanted.pages);
    std::int64_t missing = 0;
    if (demand.urgency.value_or(urgency) == served) {
      missing = std::max<std::int64_t>(0, beyond - budget);
      budget -= beyond - missing;
    }
    if (served == Urgency::admission) {
      if (missing == 0) continue;
      refused_demand = static_cast<std::int64_t>(i);
      return demand.group;
    }
    const auto group = static_cast<std::size_t>(demand.group);
    const bool was_enough = leftover[group] >= 0;
    leftover[group] += leftover_of(pages, demand, wanted, missing);
    if (was_enough) misfit[group] = static_cast<std::int64_t>(i);
  }
  for (std::size_t g = 0; served == Urgency::growth && g < pages.num_groups(); ++g) {
    if (leftover[g] >= 0) continue;
    refused_demand = misfit[g];
    return static_cast<std::int32_t>(g);
  }
  return -1;
}

/// Returns ok when the demands fit. Pages that growth cannot have are replaced by single blocks of
/// the group's other pages; new work has pages of its own, or is refused.
Status BlockManager::Impl::check_pages(std::span<const HolderDemand> demands, Urgency urgency,
                                       const DemandTotals& totals) noexcept {
  if (totals.beyond_promises() <= usable(totals.urgency())) return {};
  std::int32_t group = -1;
  if (totals.for_growth > usable(Urgency::growth)) {
    group = group_in_want(demands, urgency, Urgency::growth);
  }
  if (group == -1 && totals.for_admission == 0) return {};
  if (group == -1) {
    const std::int64_t kept = std::exchange(watermark, watermark + totals.for_growth);
    group = group_in_want(demands, urgency, Urgency::admission);
    watermark = kept;
  }
  return refuse(Resource::page, totals.pages, totals.pages - totals.beyond_promises(),
                totals.urgency(), static_cast<std::uint64_t>(group));
}

/// Takes one block the usual way: a slot of the holder's own page, or a free page of one block.
/// Returns kNoBlock when there is none. `turns` tells whether it may turn a page.
inline BlockId BlockManager::Impl::take_one(const HolderDemand& demand, Holder& holder,
                                            bool turns) noexcept {
  PagePool& pages = *pool.pages();
  const std::uint32_t tail = pages.tail(HolderTable::slot_of(demand.holder), demand.group);
  if (tail != PagePool::kNone) {
    const bool has_free = pages.page(static_cast<std::int32_t>(tail)).num_free > 0;
    return has_free ? pages.take_own(tail, demand.group) : kNoBlock;
  }
  if (!turns || pages.blocks_per_page(demand.group) != 1 || pages.num_free() == 0) return kNoBlock;
  const std::uint32_t ahead = pages.prefetch_free(kFreePagesAhead);
  if (ahead != PagePool::kNone) pool.prefetch(pages.id_of(ahead, demand.group, 0));
  consume_reservation(holder, 1);
  return pages.id_of(pages.turn_whole(demand.group), demand.group, 0);
}

/// Takes slots of the holder's own page, then pages that are promised to it, then at most `budget`
/// other pages. Returns how many blocks it took.
std::int64_t BlockManager::Impl::take_pages(const HolderDemand& demand, BlockId* ids,
                                            Generation* generations, std::int64_t budget) noexcept {
  PagePool& pages = *pool.pages();
  Holder& holder = *holders.find(demand.holder);
  const std::size_t slot = HolderTable::slot_of(demand.holder);
  std::int64_t taken = 0;
  const auto take_from = [&](std::uint32_t page) {
    PagePool::Slots slots = pages.take(page, demand.count - taken);
    BlockId id = pages.id_of(page, demand.group, 0);
    const std::int32_t first = id.value;
    for (; slots != 0; slots &= slots - 1) {
      id.value = first + std::countr_zero(slots);
      ids[taken] = id;
      generations[taken++] = pool.hand_out(id);
    }
  };
  const std::uint32_t tail = pages.tail(slot, demand.group);
  if (tail != PagePool::kNone && pages.page(static_cast<std::int32_t>(tail)).num_free > 0 &&
      demand.count > 0) {
    take_from(tail);
  }
  while (taken < demand.count && (holder.reserved > 0 || budget > 0)) {
    const std::uint32_t ahead = pages.prefetch_free(kFreePagesAhead);
    if (ahead != PagePool::kNone) pool.prefetch(pages.id_of(ahead, demand.group, 0));
    const PagePool::Turned turned = pages.turn(demand.holder, slot, demand.group);
    for (PagePool::Slots slots = turned.evicted; slots != 0; slots &= slots - 1) {
      const BlockId id = pages.id_of(turned.page, turned.evicted_group, std::countr_zero(slots));
      pool.evict(id);
      note_evicted(id);
    }
    if (holder.reserved > 0) {
      consume_reservation(holder, 1);
    } else {
      --budget;
    }
    take_from(turned.page);
  }
  return taken;
}

/// Takes single blocks of the group's pages: evictable ones first, then free ones of the fullest.
void BlockManager::Impl::take_leftover(const HolderDemand& demand, std::span<BlockId> ids,
                                       Generation* generations) noexcept {
  PagePool& pages = *pool.pages();
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool evicts = pages.has_cached(demand.group);
    const PagePool::Found found =
        evicts ? pages.take_evictable(demand.group) : pages.take_fullest(demand.group);
    if (pages.page(static_cast<std::int32_t>(found.page)).owner != demand.holder) {
      pages.mix(found.page);
    }
    ids[i] = pages.id_of(found.page, demand.group, found.slot);
    if (evicts) {
      pool.evict(ids[i]);
      note_evicted(ids[i]);
    }
    generations[i] = pool.hand_out(ids[i]);
  }
}

Result<std::int64_t> BlockManager::Impl::allocate_in_groups(std::span<const HolderDemand> demands,
                                                            std::span<BlockId> ids,
                                                            std::span<Generation> generations,
                                                            Urgency urgency) {
  DemandTotals totals;
  if (Status s = add_up_pages(demands, urgency, totals); !s) return s;
  if (Status s = check_pages(demands, urgency, totals); !s) return s;
  if (Status s = check_sizes(ids.size(), generations.size(), totals.blocks); !s) return s;
  num_evicted = 0;
  const bool fits = totals.beyond_promises() <= usable(totals.urgency());
  std::size_t first = 0;
  bool any_short = false;
  for (const HolderDemand& demand : demands) {
    Holder& holder = *holders.find(demand.holder);
    holder.references += demand.count;
    holder.bytes += demand.count * pool.pages()->block_bytes(demand.group);
    if (demand.count == 1) [[likely]] {
      if (const BlockId id = take_one(demand, holder, fits); id != kNoBlock) {
        generations[first] = pool.hand_out(id);
        ids[first++] = id;
        continue;
      }
    }
    const std::int64_t budget = fits ? kUnlimited : usable(Urgency::growth);
    demand_in_turn = static_cast<std::uint32_t>(&demand - demands.data());
    const auto taken = static_cast<std::size_t>(
        take_pages(demand, ids.data() + first, generations.data() + first, budget));
    const std::span<BlockId> rest = ids.subspan(first + taken, demand.count - taken);
    std::ranges::fill(rest, kNoBlock);
    any_short = any_short || !rest.empty();
    first += demand.count;
  }
  first = 0;
  for (std::size_t i = 0; any_short && i < demands.size(); ++i) {
    const std::span<BlockId> its = ids.subspan(first, demands[i].count);
    const auto taken = static_cast<std::size_t>(std::ranges::find(its, kNoBlock) - its.begin());
    demand_in_turn = static_cast<std::uint32_t>(i);
    take_leftover(demands[i], its.subspan(taken), generations.data() + first + taken);
    first += demands[i].count;
  }
  pool.mutable_counts().referenced += totals.blocks;
  references += totals.blocks;
  allocations += static_cast<std::uint64_t>(totals.blocks);
  evictions += num_evicted;
  return static_cast<std::int64_t>(num_evicted);
}

}  // namespace kvarena
