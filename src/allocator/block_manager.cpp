// The public face: creation, holders, and for each call its entry in the operation log.

#include "kvarena/allocator/block_manager.hpp"

#include "allocator/block_manager_impl.hpp"
#include "kvarena/base/layout.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kMaxTableSize = std::numeric_limits<std::int32_t>::max();

Status check_range(Resource argument, std::int64_t value, std::int64_t smallest,
                   std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return invalid_argument(argument, value, smallest, largest);
}

}  // namespace

Result<BlockManager> BlockManager::create(const BlockManagerOptions& given) {
  BlockManagerOptions options = given;
  if (Status s = check_range(Resource::num_blocks, options.num_blocks, 1, KvLayout::kMaxBlocks);
      !s) {
    return s;
  }
  if (Status s = check_range(Resource::watermark, options.watermark_blocks, 0, options.num_blocks);
      !s) {
    return s;
  }
  if (Status s = check_range(Resource::num_holders, options.max_holders, 1, kMaxTableSize); !s)
    return s;
  if (Status s = check_range(Resource::num_tickets, options.max_open_tickets, 1, kMaxTableSize);
      !s) {
    return s;
  }
  if (options.max_fence_entries == 0) options.max_fence_entries = options.num_blocks;
  if (Status s = check_range(Resource::fence_entry, options.max_fence_entries, 1, kMaxTableSize);
      !s) {
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

Result<HolderId> BlockManager::register_holder(const HolderInfo& info) {
  Impl& m = *impl_;
  const bool full = m.holders.is_full();
  const HolderId id = full ? kNoHolder : m.holders.insert(info);
  m.append_log({.kind = OperationKind::register_holder,
                .outcome = full ? StatusCode::exhausted : StatusCode::ok,
                .holder = id});
  if (full) return exhausted(Resource::holder, 1, 0);
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
    m.holders.erase(id);
  }
  m.append_log({.kind = OperationKind::unregister_holder, .outcome = status.code, .holder = id});
  return status;
}

Status BlockManager::reserve(HolderId id, std::int64_t count) {
  Impl& m = *impl_;
  Status status =
      check_range(Resource::reservation, count, 0, std::numeric_limits<std::int64_t>::max());
  if (Holder* holder = m.holders.find(id); holder == nullptr) {
    status = not_found(Resource::holder, id.value);
  } else if (status.is_ok()) {
    const std::int64_t increase = count - holder->reserved;
    if (increase > 0 && increase > m.usable(Urgency::admission)) {
      ++m.exhaustions;
      status = exhausted(
          Resource::reservation, static_cast<std::uint64_t>(count),
          static_cast<std::uint64_t>(holder->reserved + m.usable(Urgency::admission)), id.value);
    } else {
      m.reserved += increase;
      holder->reserved = count;
    }
  }
  m.append_log(
      {.kind = OperationKind::reserve, .outcome = status.code, .holder = id, .count = count});
  return status;
}

Result<std::int64_t> BlockManager::allocate(HolderId holder, std::span<BlockId> ids,
                                            std::span<Generation> generations, Urgency urgency) {
  // No pool has so many blocks that the count does not fit: larger requests are refused as
  // exhausted.
  constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();
  const HolderDemand demand{holder, static_cast<std::uint32_t>(std::min(ids.size(), kMost))};
  return allocate_each(std::span(&demand, 1), ids, generations, urgency);
}

Result<std::int64_t> BlockManager::allocate_each(std::span<const HolderDemand> demands,
                                                 std::span<BlockId> ids,
                                                 std::span<Generation> generations,
                                                 Urgency urgency) {
  Impl& m = *impl_;
  Result<std::int64_t> evicted = m.allocate(demands, ids, generations, urgency);
  if (m.log != nullptr) [[unlikely]] {
    // One entry a holder: together they are the call.
    std::size_t first = 0;
    for (const HolderDemand& demand : demands) {
      const std::size_t written = evicted.is_ok() ? demand.count : 0;
      m.append_log({.kind = OperationKind::allocate,
                    .outcome = evicted.status().code,
                    .flag = static_cast<std::uint8_t>(urgency),
                    .holder = demand.holder,
                    .count = demand.count,
                    .ids = ids.subspan(first, written)});
      first += written;
    }
  }
  return evicted;
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
                     .ticket = ticket,
                     .ids = ids});
  return status;
}

Status BlockManager::set_cached(BlockId id, Generation generation, bool cached) {
  const Status status = impl_->set_cached(id, generation, cached);
  impl_->append_log({.kind = OperationKind::set_cached,
                     .outcome = status.code,
                     .flag = cached,
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
                     .ticket = ticket});
  if (refused) return exhausted(Resource::ticket, 1, 0, impl_->fences.oldest_open().value);
  return ticket;
}

Status BlockManager::retire(Ticket ticket) {
  const Status status = impl_->retire(ticket);
  impl_->append_log({.kind = OperationKind::retire, .outcome = status.code, .ticket = ticket});
  return status;
}

}  // namespace kvarena
