// The public functions: creation, holders, and for each call its entry in the operation log.

#include "kvarena/allocator/block_manager.hpp"

#include "allocator/block_manager_impl.hpp"
#include "base/range_checks.hpp"
#include "kvarena/base/layout.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxTableSize = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxOpenTickets = std::int64_t{1} << 30;
constexpr std::int64_t kMaxGroupBlockBytes = std::int64_t{1} << 40;

Status check_range(Resource argument, std::int64_t value, std::int64_t smallest,
                   std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return invalid_argument(argument, value, smallest, largest);
}

/// The number of fence entries to allocate, with the default filled in.
std::int64_t fence_entries(const BlockManagerOptions& options) noexcept {
  if (options.max_fence_entries != 0) return options.max_fence_entries;
  const std::int64_t of_page = std::max<std::int64_t>(1, PagePool::ids_per_page(options.groups));
  return std::min(BlockManager::kSharers * options.num_blocks * of_page, kMaxTableSize);
}

/// Checks the groups, and that the ids of all of their blocks fit.
Status check_groups(const BlockManagerOptions& options) noexcept {
  if (options.groups.empty()) return {};
  if (Status s = check_range(Resource::num_groups, static_cast<std::int64_t>(options.groups.size()),
                             1, kMaxBlockGroups);
      !s) {
    return s;
  }
  for (const BlockGroup& group : options.groups) {
    if (Status s = check_range(Resource::block_size, group.blocks_per_page, 1, kMaxBlocksPerPage);
        !s) {
      return s;
    }
    if (Status s = check_range(Resource::block_bytes, group.block_bytes, 1, kMaxGroupBlockBytes);
        !s) {
      return s;
    }
  }
  return check_option(Option::num_blocks, options.num_blocks, 1,
                      KvLayout::kMaxBlocks / PagePool::ids_per_page(options.groups));
}

}  // namespace

std::int64_t BlockManager::host_bytes(const BlockManagerOptions& options) noexcept {
  constexpr std::int64_t kBlockBytes = 16;
  const bool has_pages = !options.groups.empty();
  const std::int64_t num_blocks =
      has_pages ? options.num_blocks * PagePool::ids_per_page(options.groups) : options.num_blocks;
  const std::int64_t pages = has_pages ? PagePool::bytes(options.num_blocks, options.groups.size(),
                                                         options.max_holders, options.eviction)
                                       : 0;
  const bool has_order = !has_pages && options.eviction != EvictionPolicy::tail_first;
  const std::int64_t order = has_order ? EvictionOrder::bytes(options.eviction, num_blocks) : 0;
  return num_blocks * kBlockBytes + pages + order +
         options.max_holders * static_cast<std::int64_t>(sizeof(Holder) + sizeof(std::uint32_t)) +
         FenceTable::bytes(options.max_open_tickets, fence_entries(options));
}

Result<BlockManager> BlockManager::create(const BlockManagerOptions& given) {
  BlockManagerOptions options = given;
  if (Status s = check_option(Option::num_blocks, options.num_blocks, 1, KvLayout::kMaxBlocks);
      !s) {
    return s;
  }
  if (Status s = check_groups(options); !s) return s;
  if (Status s =
          check_option(Option::watermark_blocks, options.watermark_blocks, 0, options.num_blocks);
      !s) {
    return s;
  }
  if (Status s = check_option(Option::max_holders, options.max_holders, 1, HolderTable::kMaxSlots);
      !s) {
    return s;
  }
  if (Status s =
          check_option(Option::max_open_tickets, options.max_open_tickets, 1, kMaxOpenTickets);
      !s) {
    return s;
  }
  if (Status s =
          check_option(Option::max_fence_entries, options.max_fence_entries, 0, kMaxTableSize);
      !s) {
    return s;
  }
  options.max_fence_entries = fence_entries(options);
  if (Status s = check_enum(Option::eviction, options.eviction, kEvictionPolicies.back()); !s) {
    return s;
  }
  try {
    return BlockManager(std::make_unique<Impl>(options));
  } catch (const std::bad_alloc&) {
    return exhausted(Resource::host_memory, static_cast<std::uint64_t>(options.num_blocks), 0);
  }
}

BlockManager::BlockManager(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
BlockManager::~BlockManager() = default;
BlockManager::BlockManager(BlockManager&&) noexcept = default;
BlockManager& BlockManager::operator=(BlockManager&&) noexcept = default;

/// A refused registration is logged too, with its outcome.
Result<HolderId> BlockManager::register_holder(const HolderInfo& given) {
  Impl& m = *impl_;
  HolderInfo info = given;
  if (info.purpose == nullptr) info.purpose = "";
  const bool full = m.holders.is_full();
  const HolderId id = full ? kNoHolder : m.holders.insert(info);
  m.append_log({.kind = OperationKind::register_holder,
                .outcome = full ? StatusCode::exhausted : StatusCode::ok,
                .holder = id});
  if (full) return exhausted(Resource::holder, 1, 0, 0, Option::max_holders);
  return id;
}

Status BlockManager::unregister_holder(HolderId id) {
  Impl& m = *impl_;
  Status status;
  if (Holder* holder = m.holders.find(id); holder == nullptr) {
    status = not_found(Resource::holder, id.value);
  } else if (holder->references != 0) {
    status = failed_precondition(Resource::holder, id.value, 0,
                                 static_cast<std::uint64_t>(holder->references));
  } else {
    m.reserved -= holder->reserved;
    if (m.pool.pages() != nullptr) m.pool.pages()->forget_holder(HolderTable::slot_of(id));
    m.holders.erase(id);
  }
  m.append_log({.kind = OperationKind::unregister_holder, .outcome = status.code, .holder = id});
  return status;
}

/// Only an increase of the promise needs usable blocks; a decrease always succeeds.
Status BlockManager::reserve(HolderId id, std::int64_t count, Urgency urgency) {
  Impl& m = *impl_;
  Status status = check_enum(Resource::urgency, urgency, Urgency::admission);
  if (status) {
    status = check_range(Resource::reservation, count, 0, std::numeric_limits<std::int64_t>::max());
  }
  if (Holder* holder = m.holders.find(id); holder == nullptr) {
    status = not_found(Resource::holder, id.value);
  } else if (status.is_ok()) {
    const std::int64_t increase = count - holder->reserved;
    if (increase > 0 && increase > m.usable(urgency)) {
      status = m.refuse(Resource::reservation, count, holder->reserved, urgency, id.value);
    } else {
      m.reserved += increase;
      holder->reserved = count;
      if (m.pool.pages() != nullptr) m.pool.pages()->keep_pages(HolderTable::slot_of(id));
    }
  }
  m.append_log({.kind = OperationKind::reserve,
                .outcome = status.code,
                .flag = static_cast<std::uint8_t>(urgency),
                .holder = id,
                .count = count});
  return status;
}

Status BlockManager::set_deadline(HolderId id, std::int64_t deadline_ns) {
  Holder* holder = impl_->holders.find(id);
  if (holder == nullptr) return not_found(Resource::holder, id.value);
  holder->info.deadline_ns = deadline_ns;
  return {};
}

Result<std::int64_t> BlockManager::allocate(HolderId holder, std::span<BlockId> ids,
                                            std::span<Generation> generations, Urgency urgency) {
  // No pool has 2^32 blocks, so a larger request is refused as exhausted whatever its exact size.
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();
  const HolderDemand demand{.holder = holder,
                            .count = static_cast<std::uint32_t>(std::min(ids.size(), kMost))};
  return allocate_each(std::span(&demand, 1), ids, generations, urgency);
}

Result<std::int64_t> BlockManager::allocate_each(std::span<const HolderDemand> demands,
                                                 std::span<BlockId> ids,
                                                 std::span<Generation> generations,
                                                 Urgency urgency) {
  Impl& m = *impl_;
  Result<std::int64_t> evicted = m.allocate(demands, ids, generations, urgency);
  if (m.log != nullptr) [[unlikely]] {
    // Each demand has one entry; together the entries are the call.
    std::size_t first = 0;
    auto left = m.pool.pages() != nullptr ? static_cast<std::int32_t>(demands.size()) : 0;
    for (const HolderDemand& demand : demands) {
      left -= left > 0 ? 1 : 0;
      const std::size_t written = evicted.is_ok() ? demand.count : 0;
      m.append_log({.kind = OperationKind::allocate,
                    .outcome = evicted.status().code,
                    .flag = static_cast<std::uint8_t>(demand.urgency.value_or(urgency)),
                    .holder = demand.holder,
                    .count = demand.count,
                    .ids = ids.subspan(first, written),
                    .group = demand.group,
                    .left_in_call = left});
      first += written;
    }
  }
  return evicted;
}

/// Only a refusal is logged: nothing else has changed.
Status BlockManager::check_available(std::int64_t count, Urgency urgency) {
  Impl& m = *impl_;
  if (Status s = check_enum(Resource::urgency, urgency, Urgency::admission); !s) return s;
  if (Status s =
          check_range(Resource::num_blocks, count, 0, std::numeric_limits<std::int64_t>::max());
      !s) {
    return s;
  }
  if (count <= m.usable(urgency)) return {};
  const Resource resource = m.pool.pages() != nullptr ? Resource::page : Resource::block;
  const Status status = m.refuse(resource, count, 0, urgency, 0);
  m.append_log({.kind = OperationKind::allocate,
                .outcome = status.code,
                .flag = static_cast<std::uint8_t>(urgency),
                .holder = kNoHolder,
                .count = count});
  return status;
}

Status BlockManager::retain(HolderId holder, std::span<const BlockId> ids,
                            std::span<const Generation> generations) {
  const Status status = impl_->retain(holder, ids, generations);
  impl_->append_log(
      {.kind = OperationKind::retain, .outcome = status.code, .holder = holder, .ids = ids});
  return status;
}

Status BlockManager::release(HolderId holder, std::span<const BlockId> ids,
                             std::span<const Generation> generations) {
  const Status status = impl_->release(holder, ids, generations);
  impl_->append_log(
      {.kind = OperationKind::release, .outcome = status.code, .holder = holder, .ids = ids});
  return status;
}

Status BlockManager::release_after(Ticket ticket, HolderId holder, std::span<const BlockId> ids,
                                   std::span<const Generation> generations) {
  const Status status = impl_->release_after(ticket, holder, ids, generations);
  impl_->append_log({.kind = OperationKind::release_after,
                     .outcome = status.code,
                     .holder = holder,
                     .ticket = impl_->fences.number_of(ticket),
                     .ids = ids});
  return status;
}

Status BlockManager::set_content(BlockId id, Generation generation, BlockContent content) {
  const Status status = impl_->set_content(id, generation, content);
  impl_->append_log({.kind = OperationKind::set_content,
                     .outcome = status.code,
                     .flag = static_cast<std::uint8_t>(content),
                     .ids = std::span(&id, 1)});
  return status;
}

Result<bool> BlockManager::quarantine(BlockId id) {
  Result<bool> result = impl_->quarantine(id);
  impl_->append_log({.kind = OperationKind::quarantine,
                     .outcome = result.status().code,
                     .ids = std::span(&id, 1)});
  return result;
}

Status BlockManager::restore(BlockId id) {
  const Status status = impl_->restore(id);
  impl_->append_log(
      {.kind = OperationKind::restore, .outcome = status.code, .ids = std::span(&id, 1)});
  return status;
}

Result<Ticket> BlockManager::open_ticket() {
  const Ticket ticket = impl_->fences.open();
  const bool refused = ticket == kNoTicket;
  impl_->append_log({.kind = OperationKind::open_ticket,
                     .outcome = refused ? StatusCode::exhausted : StatusCode::ok,
                     .ticket = impl_->fences.number_of(ticket)});
  if (refused)
    return exhausted(Resource::ticket, 1, 0, impl_->fences.oldest_open().value,
                     Option::max_open_tickets);
  return ticket;
}

Status BlockManager::retire(Ticket ticket) {
  const Status status = impl_->retire(ticket);
  impl_->append_log({.kind = OperationKind::retire,
                     .outcome = status.code,
                     .ticket = impl_->fences.number_of(ticket)});
  return status;
}

}  // namespace kvarena
