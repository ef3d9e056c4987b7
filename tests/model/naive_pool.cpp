#include "model/naive_pool.hpp"

#include <algorithm>
#include <limits>

namespace kvarena::model {
namespace {

std::uint64_t raw(std::int64_t value) { return static_cast<std::uint64_t>(value); }
std::uint64_t raw(BlockId id) { return static_cast<std::uint64_t>(id.value); }

}  // namespace

NaivePool::NaivePool(const BlockManagerOptions& options)
    : blocks_(static_cast<std::size_t>(options.num_blocks)),
      policy_(options.eviction),
      eviction_(options.eviction),
      watermark_(options.watermark_blocks),
      max_holders_(options.max_holders),
      max_open_tickets_(options.max_open_tickets),
      max_fence_entries_(options.max_fence_entries == 0
                             ? BlockManager::kSharers * options.num_blocks
                             : options.max_fence_entries) {
  for (std::int64_t i = options.num_blocks - 1; i >= 0; --i) {
    free_.push_back(BlockId(static_cast<std::int32_t>(i)));
  }
}

// ---- holders ------------------------------------------------------------------------------------

Status NaivePool::can_register() const {
  if (static_cast<std::int64_t>(holders_.size()) < max_holders_) return {};
  return exhausted(Resource::holder, 1, 0, 0, Option::max_holders);
}

bool NaivePool::adopt_holder(HolderId holder, const HolderInfo& info) {
  holders_[holder] = Holder{.info = info};
  ++counters_.holders_ever;
  return holder != kNoHolder && holders_ever_.insert(holder).second;
}

Status NaivePool::unregister_holder(HolderId id) {
  const auto found = holders_.find(id);
  if (found == holders_.end()) return not_found(Resource::holder, id.value);
  if (found->second.references != 0) {
    return failed_precondition(Resource::holder, id.value, 0, raw(found->second.references));
  }
  holders_.erase(found);
  return {};
}

Status NaivePool::reserve(HolderId id, std::int64_t count) {
  const auto found = holders_.find(id);
  if (found == holders_.end()) return not_found(Resource::holder, id.value);
  if (count < 0) {
    return invalid_argument(Resource::reservation, count, 0,
                            std::numeric_limits<std::int64_t>::max());
  }
  Holder& holder = found->second;
  const std::int64_t could_have = holder.reserved + usable(Urgency::admission);
  if (count > holder.reserved && count > could_have) {
    ++counters_.exhaustions;
    return exhausted(Resource::reservation, raw(count), raw(could_have), id.value);
  }
  holder.reserved = count;
  return {};
}

Status NaivePool::set_deadline(HolderId id, std::int64_t deadline_ns) {
  const auto found = holders_.find(id);
  if (found == holders_.end()) return not_found(Resource::holder, id.value);
  found->second.info.deadline_ns = deadline_ns;
  return {};
}

Status NaivePool::check_available(std::int64_t count, Urgency urgency) {
  if (count <= usable(urgency)) return {};
  ++counters_.exhaustions;
  return exhausted(Resource::block, raw(count), raw(usable(urgency)));
}

// ---- blocks -------------------------------------------------------------------------------------

std::int64_t NaivePool::beyond_promise(const Want& want) const {
  return std::max<std::int64_t>(0, want.count - holders_.at(want.holder).reserved);
}

/// Growth is served first, whatever the order; new work leaves the watermark.
Result<Grant> NaivePool::allocate(std::span<const Want> wants, Urgency urgency) {
  std::set<HolderId> named;
  std::int64_t total = 0;
  std::map<Urgency, std::int64_t> beyond;
  for (const Want& want : wants) {
    if (!holders_.contains(want.holder)) return not_found(Resource::holder, want.holder.value);
    if (!named.insert(want.holder).second) {
      return duplicate_argument(Resource::holder, want.holder.value);
    }
    total += want.count;
    beyond[want.urgency.value_or(urgency)] += beyond_promise(want);
  }
  std::int64_t served = 0;
  for (const Urgency its : {Urgency::growth, Urgency::admission}) {
    for (const Want& want : wants) {
      if (want.urgency.value_or(urgency) != its || beyond_promise(want) == 0) continue;
      served += beyond_promise(want);
      if (served <= usable(its)) continue;
      ++counters_.exhaustions;
      const Urgency of_all = beyond[Urgency::admission] > 0 ? Urgency::admission : Urgency::growth;
      const std::int64_t from_promises =
          total - beyond[Urgency::growth] - beyond[Urgency::admission];
      return exhausted(Resource::block, raw(total), raw(from_promises + usable(of_all)),
                       want.holder.value);
    }
  }
  Grant grant;
  evicted_.clear();
  for (std::int64_t i = 0; i < total; ++i) {
    BlockId id;
    if (!free_.empty()) {
      id = free_.back();
      free_.pop_back();
    } else {
      id = eviction_.evict();
      evicted_.push_back(id);
      ++at(id).generation;
      at(id).content = BlockContent::unwritten;
      ++grant.evicted;
      untold_evictions_.push_back(id);
    }
    at(id).live = 1;
    touched_.insert(id);
    grant.handles.push_back({id, Generation(at(id).generation)});
  }
  for (const Want& want : wants) {
    consume_reservation(holders_[want.holder], want.count);
    holders_[want.holder].references += want.count;
  }
  counters_.allocations += raw(total);
  counters_.evictions += raw(grant.evicted);
  note_peak();
  return grant;
}

Status NaivePool::retain(HolderId id, std::span<const Handle> handles) {
  const auto found = holders_.find(id);
  if (found == holders_.end()) return not_found(Resource::holder, id.value);
  std::int64_t named_evictable = 0;
  for (const Handle& handle : handles) {
    if (!exists(handle.id)) return not_found(Resource::block, raw(handle.id));
    const Block& block = at(handle.id);
    const bool kept_for_reuse =
        block.content == BlockContent::published && !block.leaving && !block.offline;
    if (block.generation != handle.generation.value || (block.live == 0 && !kept_for_reuse)) {
      return {StatusCode::stale_handle, Resource::block,         Option::none,    0,
              raw(handle.id),           handle.generation.value, block.generation};
    }
    if (state(handle.id) == BlockState::evictable) ++named_evictable;
  }
  Holder& holder = found->second;
  const std::int64_t could_have = holder.reserved + usable(Urgency::growth);
  if (named_evictable > could_have) {
    ++counters_.exhaustions;
    return exhausted(Resource::block, raw(named_evictable), raw(could_have), id.value);
  }
  for (const Handle& handle : handles) {
    if (at(handle.id).content == BlockContent::published) eviction_.use(handle.id);
    if (state(handle.id) == BlockState::evictable) {
      eviction_.leave(handle.id);
      consume_reservation(holder, 1);
    }
    ++at(handle.id).live;
    ++holder.references;
    touched_.insert(handle.id);
  }
  return {};
}

Status NaivePool::release(HolderId id, std::span<const Handle> handles) {
  if (Status s = check_release(id, handles); !s) return s;
  for (const Handle& handle : handles) {
    --at(handle.id).live;
    --holders_[id].references;
    ++counters_.releases;
    leave_if_unused(handle.id, id.value);
  }
  return {};
}

Status NaivePool::release_after(Ticket ticket, HolderId id, std::span<const Handle> handles) {
  if (!tickets_.contains(ticket)) return not_found(Resource::ticket, ticket.value);
  if (static_cast<std::int64_t>(handles.size()) > fence_entries_left()) {
    return exhausted(Resource::fence_entry, handles.size(), raw(fence_entries_left()), 0,
                     Option::max_fence_entries);
  }
  if (Status s = check_release(id, handles); !s) return s;
  for (const Handle& handle : handles) {
    --at(handle.id).live;
    ++at(handle.id).fenced;
    --holders_[id].references;
    ++counters_.releases;
    tickets_[ticket].push_back(handle.id);
    touched_.insert(handle.id);
  }
  return {};
}

Status NaivePool::set_content(Handle handle, BlockContent content) {
  if (!exists(handle.id)) return not_found(Resource::block, raw(handle.id));
  Block& block = at(handle.id);
  if (block.generation != handle.generation.value) return refuse(handle);
  const bool unpublishes = block.content == BlockContent::published;
  if (unpublishes && content == BlockContent::being_written) {
    return failed_precondition(Resource::block, raw(handle.id));
  }
  switch (state(handle.id)) {
    case BlockState::referenced:
    case BlockState::fenced:
      block.content = content;
      if (content != BlockContent::published) eviction_.forget(handle.id);
      return {};
    case BlockState::evictable:
      if (content != BlockContent::published) {
        eviction_.forget(handle.id);
        block.content = BlockContent::unwritten;
        leave_if_unused(handle.id);
      }
      return {};
    case BlockState::free:
    case BlockState::offline:
    case BlockState::absent: break;
  }
  return refuse(handle);
}

Status NaivePool::set_retention(Handle handle, const RetentionHint& retention) {
  if (policy_ != EvictionPolicy::priority) {
    return unsupported_option(Option::eviction, static_cast<std::uint64_t>(policy_));
  }
  if (retention.priority < 0 || retention.priority > RetentionHint::kMaxPriority) {
    return invalid_option(Option::priority, retention.priority, 0, RetentionHint::kMaxPriority);
  }
  if (retention.expires_at < 0) {
    return invalid_option(Option::expires_at, retention.expires_at, 0, RetentionHint::kNever);
  }
  if (!exists(handle.id)) return not_found(Resource::block, raw(handle.id));
  if (at(handle.id).generation != handle.generation.value) return refuse(handle);
  if (at(handle.id).content != BlockContent::published) {
    return failed_precondition(Resource::block, raw(handle.id));
  }
  eviction_.set_retention(handle.id, retention);
  return {};
}

Status NaivePool::advance_clock(std::int64_t now) {
  if (policy_ != EvictionPolicy::priority) {
    return unsupported_option(Option::eviction, static_cast<std::uint64_t>(policy_));
  }
  if (now < clock() || now == RetentionHint::kNever) {
    return invalid_option(Option::clock, now, clock(), RetentionHint::kNever - 1);
  }
  eviction_.advance_clock(now);
  return {};
}

Result<bool> NaivePool::quarantine(BlockId id) {
  if (!exists(id)) return not_found(Resource::block, raw(id));
  Block& block = at(id);
  switch (state(id)) {
    case BlockState::offline: return true;
    case BlockState::referenced:
    case BlockState::fenced: block.leaving = true; return false;
    case BlockState::free:
    case BlockState::evictable:
    case BlockState::absent: break;
  }
  if (reserved() >= available()) {
    return exhausted(Resource::reservation, raw(reserved()), raw(available() - 1));
  }
  std::erase(free_, id);
  eviction_.forget(id);
  block.leaving = true;
  leave_if_unused(id);
  note_peak();
  return true;
}

Status NaivePool::restore(BlockId id) {
  if (!exists(id)) return not_found(Resource::block, raw(id));
  Block& block = at(id);
  if (block.offline) {
    block.offline = false;
    free_.push_back(id);
    touched_.insert(id);
    return {};
  }
  if (block.leaving) {
    block.leaving = false;
    return {};
  }
  return failed_precondition(Resource::block, raw(id));
}

// ---- tickets ------------------------------------------------------------------------------------

Status NaivePool::can_open_ticket() const {
  if (static_cast<std::int64_t>(tickets_.size()) < max_open_tickets_) return {};
  return exhausted(Resource::ticket, 1, 0, tickets_.begin()->first.value, Option::max_open_tickets);
}

bool NaivePool::adopt_ticket(Ticket ticket) {
  if (ticket <= newest_) return false;
  newest_ = ticket;
  tickets_[ticket] = {};
  return true;
}

Status NaivePool::retire(Ticket ticket) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return not_found(Resource::ticket, ticket.value);
  const std::vector<BlockId> references = found->second;
  tickets_.erase(found);
  eviction_.end_run();
  for (const BlockId id : references) {
    --at(id).fenced;
    leave_if_unused(id, ticket.value);
  }
  eviction_.end_run();
  return {};
}

// ---- questions ----------------------------------------------------------------------------------

BlockState NaivePool::state(BlockId id) const {
  const Block& block = at(id);
  if (block.live > 0) return BlockState::referenced;
  if (block.fenced > 0) return BlockState::fenced;
  if (block.offline) return BlockState::offline;
  return block.content == BlockContent::published ? BlockState::evictable : BlockState::free;
}

std::uint32_t NaivePool::claims(BlockId id) const {
  const Block& block = at(id);
  return block.live + (block.fenced > 0 ? 1 : 0) +
         (block.content == BlockContent::published ? 1 : 0);
}

BlockContent NaivePool::content(BlockId id) const { return at(id).content; }

std::uint32_t NaivePool::reference_count(BlockId id) const { return at(id).live; }

std::int64_t NaivePool::available() const {
  return static_cast<std::int64_t>(free_.size()) + eviction_.size();
}

std::int64_t NaivePool::reserved() const {
  std::int64_t sum = 0;
  for (const auto& [id, holder] : holders_) sum += holder.reserved;
  return sum;
}

std::int64_t NaivePool::left_for(Urgency urgency) const {
  const std::int64_t kept = urgency == Urgency::admission ? watermark_ : 0;
  return available() - reserved() - kept;
}

std::int64_t NaivePool::usable(Urgency urgency) const {
  return std::max<std::int64_t>(0, left_for(urgency));
}

std::int64_t NaivePool::reserved_by(HolderId holder) const {
  const auto found = holders_.find(holder);
  return found == holders_.end() ? 0 : found->second.reserved;
}

std::int64_t NaivePool::available_after(Ticket last) const {
  std::map<BlockId, std::uint32_t> retiring;
  for (const auto& [ticket, references] : tickets_) {
    if (ticket > last) break;
    for (const BlockId id : references) ++retiring[id];
  }
  std::int64_t returning = 0;
  for (const auto& [id, count] : retiring) {
    const Block& block = at(id);
    if (block.live == 0 && block.fenced == count && !block.leaving) ++returning;
  }
  return available() + returning;
}

BlockStats NaivePool::stats() const {
  BlockStats stats = counters_;
  stats.num_blocks = num_blocks();
  for (std::int32_t i = 0; i < num_blocks(); ++i) {
    switch (state(BlockId(i))) {
      case BlockState::free: ++stats.free; break;
      case BlockState::referenced: ++stats.referenced; break;
      case BlockState::fenced: ++stats.fenced; break;
      case BlockState::evictable: ++stats.evictable; break;
      case BlockState::offline: ++stats.offline; break;
      case BlockState::absent: break;
    }
  }
  stats.watermark = watermark_;
  stats.holders = static_cast<std::int64_t>(holders_.size());
  for (const auto& [id, holder] : holders_) {
    stats.reserved += holder.reserved;
    stats.references += holder.references;
  }
  for (const auto& [ticket, references] : tickets_) {
    stats.fence_entries += static_cast<std::int64_t>(references.size());
  }
  return stats;
}

std::vector<HolderReport> NaivePool::holders() const {
  std::vector<HolderReport> reports;
  for (const auto& [id, holder] : holders_) {
    reports.push_back({id, holder.info.number, holder.info.owner, holder.info.purpose,
                       holder.references, holder.reserved, holder.info.since_ns,
                       holder.info.deadline_ns});
  }
  return reports;
}

std::int64_t NaivePool::fence_entries_left() const {
  std::int64_t left = max_fence_entries_;
  for (const auto& [ticket, references] : tickets_) {
    left -= static_cast<std::int64_t>(references.size());
  }
  return left;
}

std::vector<Ticket> NaivePool::open_tickets() const {
  std::vector<Ticket> open;
  for (const auto& [ticket, references] : tickets_) open.push_back(ticket);
  return open;
}

// ---- parts --------------------------------------------------------------------------------------

Status NaivePool::refuse(Handle handle) const {
  if (!exists(handle.id)) return not_found(Resource::block, raw(handle.id));
  const Block& block = at(handle.id);
  // The block's last reference went and nobody has it since: its own generation (fenced or cached)
  // or the one that has just ended.
  const bool nobody_since = block.live == 0 && (handle.generation.value == block.generation ||
                                                handle.generation.value + 1 == block.generation);
  return {nobody_since ? StatusCode::double_release : StatusCode::stale_handle,
          Resource::block,
          Option::none,
          0,
          raw(handle.id),
          handle.generation.value,
          block.generation};
}

Status NaivePool::check_release(HolderId id, std::span<const Handle> handles) const {
  const auto found = holders_.find(id);
  if (found == holders_.end()) return not_found(Resource::holder, id.value);
  std::map<BlockId, std::uint32_t> given_up;
  for (const Handle& handle : handles) {
    if (!exists(handle.id)) return not_found(Resource::block, raw(handle.id));
    const Block& block = at(handle.id);
    if (block.generation != handle.generation.value || block.live == 0) return refuse(handle);
    if (++given_up[handle.id] > block.live) {
      return {StatusCode::double_release, Resource::block, Option::none, 0, raw(handle.id),
              handle.generation.value,    block.generation};
    }
  }
  if (static_cast<std::int64_t>(handles.size()) > found->second.references) {
    return {StatusCode::reference_underflow,
            Resource::holder,
            Option::none,
            0,
            id.value,
            handles.size(),
            raw(found->second.references)};
  }
  return {};
}

void NaivePool::consume_reservation(Holder& holder, std::int64_t count) {
  holder.reserved -= std::min(holder.reserved, count);
}

void NaivePool::leave_if_unused(BlockId id, std::uint64_t run) {
  touched_.insert(id);
  Block& block = at(id);
  if (block.live > 0 || block.fenced > 0) return;
  if (block.leaving) {
    block.leaving = false;
    block.content = BlockContent::unwritten;
    block.offline = true;
    ++block.generation;
    eviction_.forget(id);
  } else if (block.content == BlockContent::published) {
    eviction_.arrive(id, run);
  } else {
    block.content = BlockContent::unwritten;
    ++block.generation;
    free_.push_back(id);
  }
}

void NaivePool::note_peak() {
  const std::int64_t allocated = num_blocks() - static_cast<std::int64_t>(free_.size());
  counters_.peak_allocated = std::max(counters_.peak_allocated, allocated);
}

}  // namespace kvarena::model
