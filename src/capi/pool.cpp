// Pools: block ids for engines with block tables of their own.

#include "capi/objects.hpp"
#include "capi/pool_prefix.hpp"
#include "capi/questions.hpp"

#include "kvarena/allocator/json.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

BlockManager& manager_of(PoolObject& object) noexcept { return *object.manager; }

/// Handles of blocks, as the manager takes them.
struct Blocks {
  std::span<const BlockId> ids;
  std::span<const Generation> generations;
};

Result<Blocks> blocks_from_c(const std::int32_t* blocks, const std::uint32_t* generations,
                             std::size_t count) noexcept {
  if (Status s = check_array(blocks, count); !s) return s;
  if (Status s = check_array(generations, count); !s) return s;
  static_assert(sizeof(Generation) == sizeof(std::uint32_t));
  return Blocks{std::span(reinterpret_cast<const BlockId*>(blocks), count),
                std::span(reinterpret_cast<const Generation*>(generations), count)};
}

/// Takes blocks by `allocate(manager, ids, generations, urgency)`.
template <class Allocate>
kvarena_status allocate_by(kvarena_pool* pool, std::size_t count, std::int32_t urgency,
                           std::int32_t* blocks, std::uint32_t* generations, std::size_t* evicted,
                           Allocate&& allocate) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    if (Status s = check_array(blocks, count); !s) return s;
    if (Status s = check_array(generations, count); !s) return s;
    const Result<Urgency> chosen = urgency_from_c(urgency, Urgency::growth);
    if (!chosen) return chosen.status();
    const std::span ids(reinterpret_cast<BlockId*>(blocks), count);
    const std::span kept(reinterpret_cast<Generation*>(generations), count);
    const Result<std::int64_t> taken = allocate(manager_of(object), ids, kept, *chosen);
    if (taken) object.notice(ids);
    if (taken && evicted != nullptr) *evicted = static_cast<std::size_t>(*taken);
    return taken.status();
  });
}

}  // namespace

kvarena_status kvarena_pool_create(const kvarena_pool_options* options, kvarena_pool** pool) {
  return guarded([&]() -> Status {
    kvarena_pool_options given;
    if (Status s = read_struct(options, given); !s) return s;
    if (pool == nullptr) return refused_null();
    auto object = std::make_shared<PoolObject>();
    BlockManagerOptions wanted;
    wanted.num_blocks = given.num_blocks;
    wanted.watermark_blocks = given.watermark_blocks;
    wanted.max_fence_entries = given.max_fence_entries;
    if (given.max_holders != 0) wanted.max_holders = given.max_holders;
    if (given.max_open_tickets != 0) wanted.max_open_tickets = given.max_open_tickets;
    const Result<EvictionPolicy> eviction = eviction_from_c(given.eviction);
    if (!eviction) return eviction.status();
    wanted.eviction = *eviction;
    if (given.name != nullptr) object->name = given.name;
    wanted.name = object->name;
    if (given.log != nullptr) {
      object->log = std::make_unique<LogAdapter>(given.log, given.log_user);
      wanted.log = object->log.get();
    }
    Result<BlockManager> manager = BlockManager::create(wanted);
    if (!manager) return manager.status();
    object->manager.emplace(std::move(*manager));
    if (Status s = create_prefix(given, *object); !s) return s;
    return open(std::move(object), pool);
  });
}

kvarena_status kvarena_pool_release(kvarena_pool* pool) {
  return close<PoolObject>(pool, [](PoolObject&) {});
}

// ---- holders ------------------------------------------------------------------------------------

kvarena_status kvarena_pool_open_holder(kvarena_pool* pool, const kvarena_holder_options* options,
                                        kvarena_holder* holder) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    kvarena_holder_options given;
    if (Status s = read_optional_struct(options, given); !s) return s;
    if (holder == nullptr) return refused_null();
    HolderInfo info;
    info.number = given.number;
    info.owner = given.owner;
    info.purpose = object.names.keep(given.purpose, "engine");
    info.since_ns = given.since_ns;
    info.deadline_ns = given.deadline_ns;
    const Result<HolderId> opened = manager_of(object).register_holder(info);
    if (opened) *holder = opened->value;
    return opened.status();
  });
}

kvarena_status kvarena_pool_close_holder(kvarena_pool* pool, kvarena_holder holder) {
  return enter<PoolObject>(pool, [&](PoolObject& object) {
    return manager_of(object).unregister_holder(HolderId(holder));
  });
}

kvarena_status kvarena_pool_set_deadline(kvarena_pool* pool, kvarena_holder holder,
                                         int64_t deadline_ns) {
  return enter<PoolObject>(pool, [&](PoolObject& object) {
    return manager_of(object).set_deadline(HolderId(holder), deadline_ns);
  });
}

kvarena_status kvarena_pool_holder(kvarena_pool* pool, kvarena_holder holder,
                                   kvarena_holder_report* report) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    if (report == nullptr) return refused_null();
    const Result<HolderReport> found = manager_of(object).holder(HolderId(holder));
    if (found) *report = capi::to_c(*found);
    return found.status();
  });
}

kvarena_status kvarena_pool_holders(kvarena_pool* pool, kvarena_holder_report* reports, size_t room,
                                    size_t* count) {
  return enter<PoolObject>(pool, [&](PoolObject& object) {
    return write_holders(manager_of(object), reports, room, count);
  });
}

kvarena_status kvarena_pool_reserve(kvarena_pool* pool, kvarena_holder holder, int64_t blocks,
                                    int32_t urgency) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    const Result<Urgency> chosen = urgency_from_c(urgency, Urgency::admission);
    if (!chosen) return chosen.status();
    return manager_of(object).reserve(HolderId(holder), blocks, *chosen);
  });
}

// ---- blocks -------------------------------------------------------------------------------------

kvarena_status kvarena_pool_allocate(kvarena_pool* pool, kvarena_holder holder, size_t count,
                                     int32_t urgency, int32_t* blocks, uint32_t* generations,
                                     size_t* evicted) {
  return allocate_by(pool, count, urgency, blocks, generations, evicted,
                     [&](BlockManager& manager, auto ids, auto kept, Urgency chosen) {
                       return manager.allocate(HolderId(holder), ids, kept, chosen);
                     });
}

kvarena_status kvarena_pool_allocate_each(kvarena_pool* pool, const kvarena_holder_demand* demands,
                                          size_t num_demands, int32_t urgency, int32_t* blocks,
                                          uint32_t* generations, size_t room, size_t* evicted) {
  return allocate_by(
      pool, room, urgency, blocks, generations, evicted,
      [&](BlockManager& manager, auto ids, auto kept, Urgency chosen) -> Result<std::int64_t> {
        if (Status s = check_array(demands, num_demands); !s) return s;
        std::vector<HolderDemand> wanted;
        wanted.reserve(num_demands);
        for (const kvarena_holder_demand& demand : std::span(demands, num_demands)) {
          HolderDemand& row = wanted.emplace_back();
          row.holder = HolderId(demand.holder);
          row.count = demand.count;
          if (demand.urgency == KVARENA_URGENCY_DEFAULT) continue;
          const Result<Urgency> own = urgency_from_c(demand.urgency, Urgency::growth);
          if (!own) return own.status();
          row.urgency = *own;
        }
        return manager.allocate_each(wanted, ids, kept, chosen);
      });
}

kvarena_status kvarena_pool_retain(kvarena_pool* pool, kvarena_holder holder, const int32_t* blocks,
                                   const uint32_t* generations, size_t count) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    const Result<Blocks> given = blocks_from_c(blocks, generations, count);
    if (!given) return given.status();
    return manager_of(object).retain(HolderId(holder), given->ids, given->generations);
  });
}

kvarena_status kvarena_pool_free(kvarena_pool* pool, kvarena_holder holder, const int32_t* blocks,
                                 const uint32_t* generations, size_t count, kvarena_ticket ticket) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    const Result<Blocks> given = blocks_from_c(blocks, generations, count);
    if (!given) return given.status();
    BlockManager& manager = manager_of(object);
    const Status status = ticket == 0
                              ? manager.release(HolderId(holder), given->ids, given->generations)
                              : manager.release_after(Ticket(ticket), HolderId(holder), given->ids,
                                                      given->generations);
    if (status) object.notice(given->ids);
    return status;
  });
}

kvarena_status kvarena_pool_set_content(kvarena_pool* pool, int32_t block, uint32_t generation,
                                        int32_t content) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    const Result<BlockContent> chosen =
        enumerator_of(content, BlockContent::failed, Resource::content);
    if (!chosen) return chosen.status();
    if (object.prefix && *chosen == BlockContent::published)
      return refused_prefix(Resource::content);
    const BlockId id(block);
    const Status status = manager_of(object).set_content(id, Generation(generation), *chosen);
    if (status) object.notice(std::span(&id, 1));
    return status;
  });
}

kvarena_status kvarena_pool_set_retention(kvarena_pool* pool, int32_t block, uint32_t generation,
                                          int32_t priority, int64_t expires_at) {
  return enter<PoolObject>(pool, [&](PoolObject& object) {
    return manager_of(object).set_retention(BlockId(block), Generation(generation),
                                            retention_from_c(priority, expires_at));
  });
}

kvarena_status kvarena_pool_advance_clock(kvarena_pool* pool, int64_t now) {
  return enter<PoolObject>(
      pool, [&](PoolObject& object) { return manager_of(object).advance_clock(now); });
}

kvarena_status kvarena_pool_quarantine(kvarena_pool* pool, int32_t block, bool* offline) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    const BlockId id(block);
    const Result<bool> left = manager_of(object).quarantine(id);
    if (left) object.notice(std::span(&id, 1));
    if (left && offline != nullptr) *offline = *left;
    return left.status();
  });
}

kvarena_status kvarena_pool_restore(kvarena_pool* pool, int32_t block) {
  return enter<PoolObject>(
      pool, [&](PoolObject& object) { return manager_of(object).restore(BlockId(block)); });
}

// ---- tickets ------------------------------------------------------------------------------------

kvarena_status kvarena_pool_open_ticket(kvarena_pool* pool, kvarena_ticket* ticket) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    if (ticket == nullptr) return refused_null();
    const Result<Ticket> opened = manager_of(object).open_ticket();
    if (opened) *ticket = opened->value;
    return opened.status();
  });
}

kvarena_status kvarena_pool_retire(kvarena_pool* pool, kvarena_ticket ticket) {
  return enter<PoolObject>(
      pool, [&](PoolObject& object) { return manager_of(object).retire(Ticket(ticket)); });
}

kvarena_status kvarena_pool_is_open(kvarena_pool* pool, kvarena_ticket ticket, bool* is_open) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    if (is_open == nullptr) return refused_null();
    *is_open = manager_of(object).is_open(Ticket(ticket));
    return {};
  });
}

// ---- questions ----------------------------------------------------------------------------------

kvarena_status kvarena_pool_block(kvarena_pool* pool, int32_t block, kvarena_block_info* info) {
  return enter<PoolObject>(
      pool, [&](PoolObject& object) { return write_block(manager_of(object), block, info); });
}

kvarena_status kvarena_pool_stats(kvarena_pool* pool, kvarena_stats* stats) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    if (Status s = check_target(stats); !s) return s;
    const BlockManager& manager = manager_of(object);
    kvarena_stats result{};
    add_blocks(manager.stats(), result);
    result.open_tickets = manager.num_open_tickets();
    result.oldest_ticket = manager.oldest_open_ticket().value;
    write_struct(result, stats);
    return {};
  });
}

kvarena_status kvarena_pool_can_allocate(kvarena_pool* pool, int64_t blocks, int32_t urgency,
                                         bool* can) {
  return enter<PoolObject>(pool, [&](PoolObject& object) {
    return write_can_allocate(manager_of(object), blocks, urgency, can);
  });
}

kvarena_status kvarena_pool_available(kvarena_pool* pool, kvarena_ticket ticket, int64_t* now,
                                      int64_t* after) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    write_available(manager_of(object), ticket, now, after);
    return {};
  });
}

kvarena_status kvarena_pool_explain(kvarena_pool* pool, const kvarena_status* refused,
                                    int64_t blocks, int32_t urgency,
                                    kvarena_explanation* explanation) {
  return enter<PoolObject>(pool, [&](PoolObject& object) -> Status {
    if (Status s = check_target(explanation); !s) return s;
    const auto answer = explanation_of(manager_of(object), {refused, blocks, urgency});
    if (answer) write_struct(capi::to_c(*answer), explanation);
    return answer.status();
  });
}

kvarena_status kvarena_pool_explain_json(kvarena_pool* pool, const kvarena_status* refused,
                                         int64_t blocks, int32_t urgency, char* out, size_t size,
                                         size_t* length) {
  return enter<PoolObject>(pool, [&](PoolObject& object) {
    return write_explanation(manager_of(object), {refused, blocks, urgency}, {out, size, length},
                             [](const Explanation& answer) { return to_json(answer); });
  });
}

kvarena_status kvarena_pool_explain_text(kvarena_pool* pool, const kvarena_status* refused,
                                         int64_t blocks, int32_t urgency, char* out, size_t size,
                                         size_t* length) {
  return enter<PoolObject>(pool, [&](PoolObject& object) {
    return write_explanation(manager_of(object), {refused, blocks, urgency}, {out, size, length},
                             [](const Explanation& answer) { return to_string(answer); });
  });
}

kvarena_status kvarena_pool_check(kvarena_pool* pool) {
  return enter<PoolObject>(pool, [](PoolObject& object) -> Status {
    if (Status s = manager_of(object).check_invariants(); !s) return s;
    return object.prefix ? object.prefix->check_invariants() : Status{};
  });
}
