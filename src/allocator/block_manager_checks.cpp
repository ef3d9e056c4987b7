// The functions of BlockManager that answer questions: accounts, explanation, invariants.

#include "allocator/block_manager_impl.hpp"
#include "base/out_of_memory.hpp"
#include "kvarena/allocator/block_manager.hpp"

#include <algorithm>
#include <new>

namespace kvarena {
namespace {

Status violated(Invariant invariant, Resource resource, std::int64_t subject, std::int64_t expected,
                std::int64_t found) noexcept {
  return {StatusCode::invariant_violated,
          resource,
          Option::none,
          static_cast<std::int32_t>(invariant),
          static_cast<std::uint64_t>(subject),
          static_cast<std::uint64_t>(expected),
          static_cast<std::uint64_t>(found)};
}

HolderReport report_of(HolderId id, const Holder& holder) {
  return {id,
          holder.info.number,
          holder.info.owner,
          holder.info.purpose,
          holder.references,
          holder.reserved,
          holder.info.since_ns,
          holder.info.deadline_ns,
          holder.bytes};
}

/// The order of the largest holders: most blocks first, then by id.
bool holds_more(const HolderReport& a, const HolderReport& b) noexcept {
  const std::int64_t held_a = a.references + a.reserved;
  const std::int64_t held_b = b.references + b.reserved;
  return held_a != held_b ? held_a > held_b : a.holder < b.holder;
}

}  // namespace

const char* BlockManager::name() const noexcept { return impl_->name.c_str(); }

std::int64_t BlockManager::num_blocks() const noexcept { return impl_->pool.num_blocks(); }

std::int64_t BlockManager::available_now() const noexcept { return impl_->available(); }

std::int64_t BlockManager::available_after(Ticket last) const noexcept {
  return impl_->available() + impl_->returning(last);
}

/// Counts a fenced block at the newest of its entries, if all of its entries are of tickets up to
/// `last`.
std::int64_t BlockManager::Impl::returning(Ticket last) const noexcept {
  if (pool.pages() != nullptr) return returning_pages(last);
  const Impl& m = *this;
  std::int64_t blocks = 0;
  m.fences.for_each_open(last, [&](Ticket ticket) {
    m.fences.for_each_entry(ticket, [&](std::uint32_t index) {
      const BlockId block = m.fences.entry(index).block;
      const std::uint32_t word = m.pool.record(block).word;
      const bool only_fenced = (word & BlockPool::kCount) == 0;
      const bool counted_here = m.pool.fence_head(block) == index;
      if (!only_fenced || !counted_here || (word & BlockPool::kQuarantined) != 0) return;
      bool all_retired = true;
      for (std::uint32_t i = index; i != FenceTable::kNone; i = m.fences.entry(i).next_of_block) {
        all_retired = all_retired && m.fences.entry(i).ticket <= last;
      }
      blocks += all_retired ? 1 : 0;
    });
  });
  return blocks;
}

bool BlockManager::can_allocate(std::int64_t count, Urgency urgency) const noexcept {
  return count <= impl_->usable(urgency);
}

bool BlockManager::is_open(Ticket ticket) const noexcept { return impl_->fences.is_open(ticket); }

std::int64_t BlockManager::num_open_tickets() const noexcept { return impl_->fences.num_open(); }

Ticket BlockManager::oldest_open_ticket() const noexcept { return impl_->fences.oldest_open(); }

Ticket BlockManager::newest_ticket() const noexcept { return impl_->fences.newest(); }

std::size_t BlockManager::place_of(Ticket ticket) const noexcept {
  return impl_->fences.place_of(ticket);
}

std::int32_t BlockManager::max_open_tickets() const noexcept {
  return static_cast<std::int32_t>(impl_->fences.max_open_tickets());
}

std::int32_t BlockManager::max_holders() const noexcept {
  return static_cast<std::int32_t>(impl_->holders.capacity());
}

std::int64_t BlockManager::fence_entries_available() const noexcept {
  return impl_->fences.entries_left();
}

Result<HolderReport> BlockManager::holder(HolderId id) const {
  const Holder* found = impl_->holders.find(id);
  if (found == nullptr) return not_found(Resource::holder, id.value);
  return report_of(id, *found);
}

Generation BlockManager::generation(BlockId id) const noexcept {
  return Generation(impl_->pool.record(id).generation);
}

std::uint32_t BlockManager::reference_count(BlockId id) const noexcept {
  return impl_->pool.live_references(id);
}

std::uint32_t BlockManager::claims(BlockId id) const noexcept {
  const BlockPool& pool = impl_->pool;
  return pool.live_references(id) +
         (pool.state(id) != BlockState::evictable && pool.fence_head(id) != BlockPool::kNoFence) +
         (pool.content(id) == BlockContent::published);
}

std::uint64_t BlockManager::claim_serial() const noexcept { return impl_->claim_serial; }

BlockContent BlockManager::content(BlockId id) const noexcept { return impl_->pool.content(id); }

BlockState BlockManager::state(BlockId id) const noexcept { return impl_->pool.state(id); }

BlockStats BlockManager::stats() const noexcept { return impl_->stats(); }

BlockStats BlockManager::Impl::stats() const noexcept {
  const Impl& m = *this;
  const StateCounts& counts = m.pool.counts();
  return {.num_blocks = num_carved(),
          .free = counts.free,
          .referenced = counts.referenced,
          .fenced = counts.fenced,
          .evictable = counts.evictable,
          .offline = counts.offline,
          .reserved = m.reserved,
          .watermark = m.watermark,
          .holders = m.holders.size(),
          .references = m.references,
          .fence_entries = m.fences.num_entries(),
          .peak_allocated = m.peak_allocated,
          .holders_ever = m.holders.inserted_ever(),
          .allocations = m.allocations,
          .releases = m.releases,
          .evictions = m.evictions,
          .exhaustions = m.exhaustions};
}

Explanation BlockManager::explain(std::int64_t requested, Urgency urgency) const noexcept {
  const Impl& m = *impl_;
  Explanation e;
  e.requested = requested;
  e.urgency = urgency;
  e.usable = m.usable(urgency);
  e.fits = requested <= e.usable;
  e.missing = e.fits ? 0 : requested - m.left_for(urgency);
  e.stats = stats();
  m.describe_pages(e);
  m.name_holders(e);
  return e;
}

Explanation BlockManager::explain(const Status& refused) const noexcept {
  const Impl& m = *impl_;
  Explanation e = m.refusal;
  const auto required = static_cast<std::int64_t>(refused.required);
  const auto available = static_cast<std::int64_t>(refused.available);
  if (e.requested != required || e.usable != available || required == 0) {
    e = Explanation{};
    e.requested = required;
    e.usable = available;
    e.missing = std::max<std::int64_t>(0, required - available);
    e.stats = stats();
    m.describe_pages(e);
  }
  m.name_holders(e);
  return e;
}

/// Keeps the largest holders in a sorted array while it goes over all of them.
void BlockManager::Impl::name_holders(Explanation& e) const noexcept {
  const Impl& m = *this;
  e.oldest_open_ticket = m.fences.oldest_open();
  e.fenced_returning = returning(m.fences.newest());
  m.holders.for_each([&e](HolderId id, const Holder& holder) {
    const HolderReport report = report_of(id, holder);
    if (report.references + report.reserved == 0) return;
    auto end = e.largest.begin() + static_cast<std::ptrdiff_t>(e.num_largest);
    auto place = std::upper_bound(e.largest.begin(), end, report, holds_more);
    if (place == e.largest.end()) return;
    if (e.num_largest < e.largest.size()) {
      ++e.num_largest;
      ++end;
    }
    std::move_backward(place, end - 1, end);
    *place = report;
  });
}

std::size_t BlockManager::holders(std::span<HolderReport> reports) const noexcept {
  std::size_t written = 0;
  impl_->holders.for_each([&](HolderId id, const Holder& holder) {
    if (written < reports.size()) reports[written++] = report_of(id, holder);
  });
  std::sort(reports.begin(), reports.begin() + static_cast<std::ptrdiff_t>(written),
            [](const HolderReport& a, const HolderReport& b) { return a.holder < b.holder; });
  return written;
}

std::vector<HolderReport> BlockManager::holders() const noexcept try {
  std::vector<HolderReport> reports(static_cast<std::size_t>(impl_->holders.size()));
  holders(reports);
  return reports;
} catch (const std::bad_alloc&) {
  return {};
}

Status BlockManager::check_invariants() const try {
  const Impl& m = *impl_;
  const StateCounts& kept = m.pool.counts();
  if (Status status = check_totals(); !status) return status;
  if (!(m.pool.recount() == kept)) {
    return violated(Invariant::state_counts, Resource::num_blocks, 0, kept.free,
                    m.pool.recount().free);
  }
  const bool has_pages = m.pool.pages() != nullptr;
  if (has_pages) {
    if (Status status = m.check_page_lists(); !status) return status;
  }
  if (!has_pages && !m.pool.free_list_is_whole()) {
    return violated(Invariant::free_list, Resource::block, 0, kept.free, -1);
  }
  if (!has_pages && !m.pool.evictable_list_is_whole()) {
    return violated(Invariant::evictable_list, Resource::block, 0, kept.evictable, -1);
  }
  std::int64_t held = 0;
  std::int64_t reserved = 0;
  m.holders.for_each([&](HolderId, const Holder& holder) {
    held += holder.references;
    reserved += holder.reserved;
  });
  const std::int64_t live = m.pool.total_live_references();
  if (held != live || held != m.references) {
    return violated(Invariant::holder_references, Resource::holder, 0, live, held);
  }
  if (reserved != m.reserved) {
    return violated(Invariant::reservations, Resource::reservation, 0, m.reserved, reserved);
  }
  return check_blocks(0, m.pool.num_blocks());
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status BlockManager::check_totals() const noexcept {
  const Impl& m = *impl_;
  const StateCounts& kept = m.pool.counts();
  if (!stats().balanced()) {
    return violated(Invariant::counts_balance, Resource::num_blocks, 0, stats().num_blocks,
                    kept.free + kept.fenced + kept.evictable + kept.referenced + kept.offline);
  }
  if (m.pool.pages() != nullptr) {
    if (Status s = m.check_page_totals(); !s) return s;
  }
  for (const std::int64_t count :
       {kept.free, kept.fenced, kept.evictable, kept.referenced, kept.offline}) {
    if (count < 0) return violated(Invariant::state_counts, Resource::num_blocks, 0, 0, count);
  }
  if (m.references < kept.referenced) {
    return violated(Invariant::holder_references, Resource::holder, 0, kept.referenced,
                    m.references);
  }
  if (m.reserved < 0 || m.reserved > m.available()) {
    return violated(Invariant::reservations, Resource::reservation, 0, m.available(), m.reserved);
  }
  if (m.fences.num_entries() < kept.fenced || (kept.fenced > 0 && m.fences.num_open() == 0)) {
    return violated(Invariant::fence_entries, Resource::fence_entry, 0, kept.fenced,
                    m.fences.num_entries());
  }
  return {};
}

Status BlockManager::Impl::check_block(BlockId id) const noexcept {
  const std::int64_t raw = id.value;
  const BlockState state = pool.state(id);
  if (state == BlockState::evictable) {
    if (pool.pages() != nullptr || pool.evictable_links_agree(id)) return {};
    return violated(Invariant::evictable_list, Resource::block, raw, 1, 0);
  }
  const std::uint32_t word = pool.record(id).word;
  if (state == BlockState::free && word != 0 &&
      (word & ~BlockPool::kFailedFree) != BlockPool::kWriting) {
    return violated(Invariant::state_counts, Resource::block, raw, 0, word);
  }
  if (pool.live_references(id) > references) {
    return violated(Invariant::holder_references, Resource::block, raw, references,
                    pool.live_references(id));
  }
  const std::uint32_t head = pool.fence_head(id);
  const bool may_be_fenced = state == BlockState::referenced || state == BlockState::fenced;
  if (!may_be_fenced && head != BlockPool::kNoFence) {
    return violated(Invariant::fence_entries, Resource::block, raw, 0, 1);
  }
  if (state == BlockState::fenced && head == BlockPool::kNoFence) {
    return violated(Invariant::fence_entries, Resource::block, raw, 1, 0);
  }
  std::int64_t length = 0;
  for (std::uint32_t i = head; i != FenceTable::kNone; i = fences.entry(i).next_of_block) {
    if (i >= fences.capacity() || ++length > fences.num_entries()) {
      return violated(Invariant::fence_entries, Resource::block, raw, fences.num_entries(), length);
    }
    const FenceTable::Entry& entry = fences.entry(i);
    if (entry.block != id || !fences.is_open(entry.ticket)) {
      return violated(Invariant::fence_entries, Resource::block, raw, raw, entry.block.value);
    }
  }
  return {};
}

Status BlockManager::check_blocks(std::int64_t first, std::int64_t count) const noexcept {
  const Impl& m = *impl_;
  const std::int64_t begin = std::max<std::int64_t>(0, first);
  const std::int64_t end = std::min(m.pool.num_blocks(), begin + std::max<std::int64_t>(0, count));
  for (std::int64_t raw = begin; raw < end; ++raw) {
    const bool is_listed = m.pool.pages() == nullptr && raw < m.pool.counts().free;
    if (is_listed && !m.pool.names_free_block(raw)) {
      return violated(Invariant::free_list, Resource::block, raw, 1, 0);
    }
    const BlockId id(static_cast<std::int32_t>(raw));
    if (m.pool.pages() != nullptr) {
      if (Status s = m.check_place(id); !s) return s;
    }
    if (m.is_plain(id)) continue;
    if (Status s = m.check_block(id); !s) return s;
  }
  return {};
}

}  // namespace kvarena
