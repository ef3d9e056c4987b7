#include "cache/cache_plan.hpp"

#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "cache/backend_sizes.hpp"
#include "cache/cache_options.hpp"
#include "cache/cache_scrubs.hpp"
#include "cache/encoder_writes.hpp"
#include "device/request_checks.hpp"
#include "kvarena/allocator/layer_view.hpp"
#include "kvarena/attention/cpu_workers.hpp"
#include "step/device_tables_memory.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <thread>
#include <utility>

namespace kvarena {
namespace {

constexpr std::int64_t kBatchTables = 4;  ///< the default is this many times num_blocks, because
                                          ///< sequences share prefixes
constexpr std::int64_t kMaxHolders = 1 << 24;  ///< of a BlockManager
/// An address for a pool that is only planned. It has the alignment that every device gives. It is
/// never read.
constexpr std::uintptr_t kNowhere = 4096;

/// Sequences, pins and the floors of salts each need a holder.
std::int64_t num_holders(const KvCacheOptions& options) noexcept {
  const std::int64_t floors = options.prefix_cache.is_on ? options.prefix_cache.max_accounts : 0;
  return std::min(std::int64_t{options.max_sequences} + options.max_pins + floors, kMaxHolders);
}

/// Returns the layout with the given tile order. Without one, CUDA gets the order that its kernels
/// read fastest, if the layout permits it.
Result<KvLayout> layout_on(DeviceKind kind, const UniformLayoutOptions& options) {
  if (kind == DeviceKind::cuda && !options.tile_order) {
    UniformLayoutOptions chunked = options;
    chunked.tile_order = TileOrder::chunked;
    Result<KvLayout> layout = KvLayout::create(chunked);
    if (layout || layout.status().code != StatusCode::unsupported) return layout;
  }
  return KvLayout::create(options);
}

/// Returns the number of attention threads: that of the options, of the target, or one a core.
std::int32_t thread_count(const KvCacheOptions& options, const CacheTarget& target) noexcept {
  if (options.num_threads != 0) return options.num_threads;
  if (target.num_threads != 0) return target.num_threads;
  const auto cores = static_cast<std::int32_t>(std::thread::hardware_concurrency());
  return std::clamp(cores, 1, CpuWorkers::kMaxThreads);
}

/// Checks a size against the most that a device gives in one allocation.
Status check_bytes(std::int64_t bytes) noexcept {
  return check_range(Resource::pool_bytes, bytes, 1,
                     static_cast<std::int64_t>(kMaxAllocationBytes));
}

/// Adds the option that caused a kernel's refusal to the status.
Status named_as_option(Status status, const UniformLayoutOptions& layout) noexcept {
  switch (status.resource) {
    case Resource::dtype: status.option = Option::dtype; break;
    case Resource::tile_order: status.option = Option::tile_order; break;
    case Resource::head_dim: {
      const bool is_of_k = status.subject == static_cast<std::uint64_t>(layout.head_dim_k);
      status.option = is_of_k ? Option::head_dim_k : Option::head_dim_v;
      break;
    }
    default: break;
  }
  return status;
}

Status check_target(const CacheTarget& target) noexcept {
  if (Status s = check_enum(Option::kind, target.kind, DeviceKind::cuda); !s) return s;
  return check_option(Option::num_threads, target.num_threads, 0, CpuWorkers::kMaxThreads);
}

/// Plans the workspaces. They do not depend on the number of blocks, so one block is planned.
Result<WorkspacePlan> workspaces_of(const CachePlan& plan) {
  if (plan.groups) {
    return plan_group_workspaces(plan.target.kind, plan.groups->layout, plan.backend);
  }
  const Result<KvLayerView> kv =
      layer_view({plan.layout, plan.options.order, 1}, reinterpret_cast<std::byte*>(kNowhere), 0);
  if (!kv) return kv.status();
  return plan_workspaces(plan.target.kind, plan.backend, *kv);
}

}  // namespace

Result<CachePlan> plan_shape(const KvCacheOptions& given, const CacheTarget& target) {
  if (Status status = check_target(target); !status) return status;
  KvCacheOptions options = given;
  std::optional<GroupPlan> groups;
  if (!options.groups.empty()) {
    Result<GroupPlan> planned = plan_groups(options, target.kind);
    if (!planned) return planned.status();
    groups = std::move(*planned);
  }
  Result<KvLayout> layout = groups ? Result<KvLayout>(groups->layout.parts()[0].layout)
                                   : layout_on(target.kind, given.layout);
  if (!layout) return layout.status();
  if (Status status = complete(options); !status) return status;
  if (options.home_stream != nullptr && target.kind == DeviceKind::host) {
    return unsupported_option(Option::home_stream, 0);
  }
  CachePlan plan{.target = target,
                 .options = options,
                 .layout = std::move(*layout),
                 .groups = std::move(groups),
                 .pool = {},
                 .backend = {.num_q_heads = options.num_q_heads,
                             .window_tokens = options.window_tokens,
                             .num_threads = thread_count(options, target),
                             .max_decode_tokens = options.max_decode_tokens,
                             .batch_invariant_tokens = options.batch_invariant_tokens,
                             .draft_trees = options.draft_trees,
                             .max_shared_rows = options.max_shared_rows,
                             .num_sms = target.num_sms,
                             .block_size_tokens = options.layout.block_size_tokens,
                             .max_sequences = options.max_sequences,
                             .max_sequence_blocks = 0,
                             .max_sequence_tokens = options.max_sequence_tokens,
                             .checkpoint_every_tokens = options.checkpoint_every_tokens,
                             .scrubs = options.scrub != Scrub::never,
                             .limits = {.steps_in_flight = options.steps_in_flight,
                                        .max_rows = options.max_batch_rows,
                                        .max_tokens = options.max_step_tokens,
                                        .max_blocks = 0},
                             .workspaces = {}}};
  const Result<WorkspacePlan> workspaces = workspaces_of(plan);
  if (!workspaces) return named_as_option(workspaces.status(), options.layout);
  if (workspaces->count > 0) {
    if (Status status = check_bytes(workspaces->bytes); !status) return status;
  }
  plan.backend.workspaces = *workspaces;
  return plan;
}

namespace {

/// The memory of device tables.
struct TableBytes {
  std::int64_t device;
  std::int64_t staging;
};

/// Plans the memory of the device tables. Returns what check_options returns for them.
Result<TableBytes> table_bytes(const CachePlan& plan) noexcept try {
  if (plan.groups) {
    const GroupTablesOptions options = group_tables_options(plan.groups->layout, plan.backend);
    if (Status status = check_options(options); !status) return status;
    const GroupTablesMemory memory = plan_memory(options);
    return TableBytes{memory.device_bytes, memory.staging_bytes};
  }
  const DeviceTablesOptions options = tables_options(plan.backend);
  if (Status status = check_options(options); !status) return status;
  const DeviceTablesMemory memory = plan_memory(options);
  return TableBytes{memory.device_bytes, memory.staging_bytes};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace

/// The pool and the tables depend on the number of blocks; the workspaces do not.
Status plan_blocks(CachePlan& plan, const PoolPlan& pool) noexcept {
  const KvCacheOptions& options = plan.options;
  const std::int64_t longest =
      options.max_sequence_tokens == 0
          ? pool.num_blocks
          : (options.max_sequence_tokens - 1) / plan.layout.block_size() + 1;
  plan.pool = pool;
  plan.backend.max_sequence_blocks = static_cast<std::int32_t>(std::min(longest, pool.num_blocks));
  const std::int64_t in_unit = plan.groups ? most_blocks_per_page(*plan.groups) : 1;
  plan.backend.limits.max_blocks = options.max_batch_blocks == 0
                                       ? kBatchTables * in_unit * pool.num_blocks
                                       : options.max_batch_blocks;
  if (plan.groups) {
    if (Status status = check_ids(*plan.groups, pool.num_blocks); !status) return status;
    if (options.max_sequence_tokens == 0) {
      plan.backend.max_sequence_tokens = longest_tokens(*plan.groups, pool.num_blocks);
    }
  }
  if (Status status = check_bytes(pool.pool_bytes); !status) return status;
  if (Status status = check_option(Option::max_batch_blocks, plan.backend.limits.max_blocks, 1,
                                   kMaxTableEntries);
      !status) {
    return status;
  }
  if (plan.target.kind == DeviceKind::host) return {};
  const Result<TableBytes> memory = table_bytes(plan);
  if (!memory) return memory.status();
  const auto most = static_cast<std::int64_t>(kMaxAllocationBytes);
  if (Status s = check_option(Option::bounce_bytes, plan.target.bounce_bytes, 1, most); !s)
    return s;
  for (const std::int64_t bytes : {memory->device, memory->staging}) {
    if (Status status = check_bytes(bytes); !status) return status;
  }
  return {};
}

Result<CachePlan> plan_cache(const KvCacheOptions& options, const CacheTarget& target,
                             std::int64_t free_bytes) {
  Result<CachePlan> plan = plan_shape(options, target);
  if (!plan) return plan;
  const Result<PoolPlan> pool = plan_pool(plan->unit_bytes(), options.size, free_bytes);
  if (!pool) return pool.status();
  if (Status status = plan_blocks(*plan, *pool); !status) return status;
  if (Status status =
          check_option(Option::watermark_blocks, options.watermark_blocks, 0, pool->num_blocks);
      !status) {
    return status;
  }
  return plan;
}

BlockManagerOptions manager_options(const CachePlan& plan) noexcept {
  const KvCacheOptions& options = plan.options;
  return {.num_blocks = plan.pool.num_blocks,
          .watermark_blocks = options.watermark_blocks,
          .max_holders = static_cast<std::int32_t>(num_holders(options)),
          .max_open_tickets = options.max_open_tickets,
          .max_fence_entries = options.max_fence_entries,
          .log = options.log,
          .name = options.name,
          .groups = plan.groups ? std::span<const BlockGroup>(plan.groups->blocks)
                                : std::span<const BlockGroup>(),
          .eviction = options.eviction,
          .page_bytes = plan.groups ? plan.groups->layout.page_bytes() : 0};
}

BlockTablesOptions block_tables_options(const CachePlan& plan) noexcept {
  const KvCacheOptions& options = plan.options;
  return {.block_size_tokens = options.layout.block_size_tokens,
          .max_sequences = options.max_sequences,
          .max_table_pages = options.max_table_pages,
          .max_pins = options.max_pins,
          .max_append_tokens = options.max_step_tokens,
          .report_rows = true,
          .can_undo = true,
          .groups = plan.groups ? std::span<const TableGroup>(plan.groups->tables)
                                : std::span<const TableGroup>(),
          .checkpoint_every_tokens = options.checkpoint_every_tokens,
          .prefix_cache = options.prefix_cache};
}

/// Returns the blocks of the manager: with groups those of all groups.
static std::int64_t num_ids(const CachePlan& plan) noexcept {
  std::int64_t in_unit = plan.groups ? 0 : 1;
  if (plan.groups) {
    for (const BlockGroup& blocks : plan.groups->blocks) in_unit += blocks.blocks_per_page;
  }
  return plan.pool.num_blocks * in_unit;
}

/// Counts each allocation that a cache keeps.
CacheFootprint footprint_of(const CachePlan& plan) noexcept {
  const WorkspacePlan& workspaces = plan.backend.workspaces;
  CacheFootprint footprint{
      .num_blocks = plan.pool.num_blocks,
      .pool_bytes = plan.pool.pool_bytes,
      .workspace_bytes = workspaces.count * workspaces.bytes,
      .device_allocations = 1 + workspaces.count,
      .host_bytes = BlockManager::host_bytes(manager_options(plan)) +
                    BlockTables::host_bytes(num_ids(plan), block_tables_options(plan))};
  if (plan.groups) {
    footprint.host_bytes += EncoderWrites::host_bytes(
        plan.groups->layout, plan.options.max_sequences, plan.backend.limits.max_rows);
  }
  if (plan.backend.scrubs) {
    footprint.host_bytes +=
        plan.groups
            ? CacheScrubs::host_bytes(*plan.groups, plan.pool.num_blocks,
                                      plan.options.max_sequences, plan.backend.limits)
            : CacheScrubs::host_bytes(plan.pool.num_blocks, plan.options.layout.block_size_tokens,
                                      plan.backend.limits);
  }
  if (plan.target.kind == DeviceKind::host) return footprint;
  if (const Result<TableBytes> tables = table_bytes(plan); tables) {
    footprint.table_bytes = tables->device;
    footprint.staging_bytes = tables->staging + plan.target.bounce_bytes;
  }
  footprint.device_allocations += 1;
  footprint.staging_allocations = 2;
  return footprint;
}

}  // namespace kvarena
