// Caches: creating them, what they take, and the layout of pools in memory of the engine's.

#include "capi/convert.hpp"
#include "capi/objects.hpp"
#include "capi/watching.hpp"

#include "kvarena/allocator/layer_view.hpp"
#include "kvarena/cache/cache_footprint.hpp"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

/// The options of the library, with the given log, events and name.
Result<KvCacheOptions> options_of(const kvarena_cache_options& given, CacheObject& object,
                                  GroupOptions& groups) {
  Result<KvCacheOptions> options = options_from_c(given, groups);
  if (!options) return options;
  if (given.log != nullptr) {
    object.log = std::make_unique<LogAdapter>(given.log, given.log_user);
    options->log = object.log.get();
  }
  if (given.prefix_events != nullptr) {
    object.events = std::make_unique<EventAdapter>(given.prefix_events, given.prefix_events_user);
    options->prefix_cache.events = object.events->sink();
  }
  if (given.name != nullptr) object.name = given.name;
  options->name = object.name;
  return options;
}

Result<CacheTarget> target_from_c(const kvarena_target* target) noexcept {
  kvarena_target given;
  if (Status s = read_struct(target, given); !s) return s;
  CacheTarget result;
  result.kind = given.is_cuda != 0 ? DeviceKind::cuda : DeviceKind::host;
  result.num_threads = given.num_threads;
  result.num_sms = given.num_sms;
  if (given.bounce_bytes != 0) result.bounce_bytes = given.bounce_bytes;
  return result;
}

kvarena_footprint to_c(const CacheFootprint& footprint) noexcept {
  kvarena_footprint result{};
  result.num_blocks = footprint.num_blocks;
  result.pool_bytes = footprint.pool_bytes;
  result.workspace_bytes = footprint.workspace_bytes;
  result.table_bytes = footprint.table_bytes;
  result.staging_bytes = footprint.staging_bytes;
  result.device_bytes = footprint.device_bytes();
  result.host_bytes = footprint.host_bytes;
  result.device_allocations = footprint.device_allocations;
  result.staging_allocations = footprint.staging_allocations;
  return result;
}

/// Writes the footprint that `compute(options, target)` returns.
template <class Compute>
kvarena_status write_footprint(const kvarena_cache_options* options, const kvarena_target* target,
                               kvarena_footprint* footprint, Compute&& compute) {
  return guarded([&]() -> Status {
    kvarena_cache_options given;
    if (Status s = read_struct(options, given); !s) return s;
    if (Status s = check_target(footprint); !s) return s;
    const Result<CacheTarget> device = target_from_c(target);
    if (!device) return device.status();
    GroupOptions groups;
    const Result<KvCacheOptions> wanted = options_from_c(given, groups);
    if (!wanted) return wanted.status();
    const Result<CacheFootprint> computed = compute(*wanted, *device);
    if (computed) write_struct(to_c(*computed), footprint);
    return computed.status();
  });
}

/// Returns the limit that create took.
std::int64_t max_batch_blocks_of(const KvCacheOptions& options, const Arena& arena) noexcept {
  if (options.max_batch_blocks != 0) return options.max_batch_blocks;
  std::int64_t in_page = 1;
  if (arena.groups() != nullptr) {
    for (const GroupLayout::Part& part : arena.groups()->parts()) {
      in_page = std::max<std::int64_t>(in_page, part.blocks.blocks_per_page);
    }
    for (const GroupLayout::States& states : arena.groups()->states()) {
      in_page = std::max<std::int64_t>(in_page, states.blocks.blocks_per_page);
    }
  }
  return 4 * in_page * arena.num_blocks();
}

/// Returns the longest sequence that the pool can hold. Without a maximum that is what a group that
/// keeps all tokens has room for; without such a group, what a page is chosen for.
std::int64_t max_sequence_tokens_of(const KvCacheOptions& options, const Arena& arena) noexcept {
  if (options.max_sequence_tokens != 0) return options.max_sequence_tokens;
  if (arena.groups() == nullptr) return arena.num_blocks() * arena.layout().block_size();
  constexpr std::int64_t kDefaultTokens = 131'072;
  std::optional<std::int64_t> longest;
  for (const GroupLayout::Part& part : arena.groups()->parts()) {
    const auto group = static_cast<std::size_t>(part.group);
    if (arena.groups()->groups()[group].kind != PagedKind::full) continue;
    const std::int64_t in_part =
        arena.num_blocks() * part.blocks.blocks_per_page * part.layout.block_size();
    longest = std::min(longest.value_or(in_part), in_part);
  }
  return longest.value_or(kDefaultTokens);
}

/// Writes what concerns the prefix cache.
void answer_prefix(const KvCacheOptions& o, kvarena_cache_options& answer) noexcept {
  answer.prefix_cache = o.prefix_cache.is_on ? 1 : 0;
  answer.prefix_duplicates = static_cast<std::int32_t>(o.prefix_cache.duplicates);
  answer.prefix_extra_keys = o.prefix_cache.max_extra_keys;
  answer.prefix_history = o.prefix_cache.history_entries;
  answer.prefix_accounts = o.prefix_cache.max_accounts;
  answer.prefix_share_parts = o.prefix_cache.share_parts ? 1 : 0;
  answer.prefix_ghost_blocks = static_cast<std::int32_t>(o.prefix_cache.ghost_blocks);
  answer.eviction = static_cast<std::int32_t>(o.eviction);
}

/// What the cache was made from, with its defaults filled in.
kvarena_cache_options answer_of(const CacheObject& object) noexcept {
  const KvCacheOptions& o = object.options;
  const Arena& arena = object.cache->arena();
  const auto dims = arena.layer_view(0);
  kvarena_cache_options answer{};
  answer.num_layers = o.layout.num_layers;
  answer.num_kv_heads = o.layout.num_kv_heads;
  answer.head_dim_k = o.layout.head_dim_k;
  answer.head_dim_v = dims ? dims->value.head_dim : o.layout.head_dim_v;
  answer.dtype = capi::to_c(o.layout.dtype);
  answer.block_size_tokens = arena.layout().block_size();
  answer.tile_order =
      arena.layout().tile_order() == TileOrder::chunked ? KVARENA_TILE_CHUNKED : KVARENA_TILE_ROWS;
  answer.block_order = static_cast<std::int32_t>(arena.order());
  answer.num_blocks = arena.num_blocks();
  answer.num_q_heads = o.num_q_heads;
  answer.max_sequences = o.max_sequences;
  answer.max_sequence_tokens = max_sequence_tokens_of(o, arena);
  answer.max_step_tokens = o.max_step_tokens;
  answer.max_batch_blocks = max_batch_blocks_of(o, arena);
  answer.watermark_blocks = o.watermark_blocks;
  answer.max_fence_entries = o.max_fence_entries;
  answer.max_table_pages = o.max_table_pages;
  answer.audit_blocks_per_step = o.audit_blocks_per_step != 0 ? o.audit_blocks_per_step : -1;
  answer.batch_invariant_tokens = o.batch_invariant_tokens;
  answer.max_batch_rows = o.max_batch_rows != 0 ? o.max_batch_rows : o.max_sequences;
  answer.window_tokens = o.window_tokens;
  answer.steps_in_flight = o.steps_in_flight;
  answer.max_open_tickets = o.max_open_tickets;
  answer.num_threads = o.num_threads;
  answer.max_decode_tokens = o.max_decode_tokens;
  answer.max_shared_rows = o.max_shared_rows != 0 ? o.max_shared_rows : -1;
  answer.scrub = static_cast<std::int32_t>(o.scrub);
  answer.draft_trees = o.draft_trees ? 1 : 0;
  answer.max_pins = o.max_pins != 0 ? o.max_pins : -1;
  answer.eager_retire = o.eager_retire ? 1 : 0;
  answer.num_groups = arena.groups() != nullptr ? std::ssize(arena.groups()->groups()) : 0;
  answer.page_sequence_tokens = o.page_sequence_tokens;
  answer.checkpoint_every_tokens = o.checkpoint_every_tokens != 0 ? o.checkpoint_every_tokens : -1;
  answer_prefix(o, answer);
  return answer;
}

/// The layout of a pool in memory of the engine's: all layers are alike.
Result<KvLayout> uniform_layout(const kvarena_cache_options& options) {
  if (options.num_groups != 0) {
    return unsupported_option(Option::groups, static_cast<std::uint64_t>(options.num_groups));
  }
  const Result<UniformLayoutOptions> wanted = layout_from_c(options);
  return wanted ? KvLayout::create(*wanted) : wanted.status();
}

}  // namespace

kvarena_status kvarena_cache_create(kvarena_device* device, const kvarena_cache_options* options,
                                    kvarena_cache** cache) {
  const Visit visit(device, Kind::device);
  if (!visit) return capi::to_c(visit.status());
  return guarded([&]() -> Status {
    kvarena_cache_options given;
    if (Status s = read_struct(options, given); !s) return s;
    if (cache == nullptr) return refused_null();
    auto object = std::make_shared<CacheObject>();
    object->device = std::static_pointer_cast<DeviceObject>(visit.share());
    GroupOptions groups;
    const Result<KvCacheOptions> wanted = options_of(given, *object, groups);
    if (!wanted) return wanted.status();
    object->options = *wanted;
    object->options.groups = {};  // borrowed for the call
    Result<KvCache> created = KvCache::create(object->device->device(), *wanted);
    if (!created) return created.status();
    object->cache.emplace(std::move(*created));
    const std::int32_t rows =
        wanted->max_batch_rows != 0 ? wanted->max_batch_rows : wanted->max_sequences;
    object->demands.reserve(static_cast<std::size_t>(rows));
    return open(std::move(object), cache);
  });
}

kvarena_status kvarena_cache_release(kvarena_cache* cache) {
  return close<CacheObject>(cache, [](CacheObject& object) { end_watches(object); });
}

kvarena_status kvarena_cache_footprint(const kvarena_cache_options* options,
                                       const kvarena_target* target, int64_t free_bytes,
                                       kvarena_footprint* footprint) {
  return write_footprint(options, target, footprint, [&](const auto& wanted, const auto& device) {
    return cache_footprint(wanted, device, free_bytes);
  });
}

kvarena_status kvarena_cache_fit(const kvarena_cache_options* options, const kvarena_target* target,
                                 int64_t budget_bytes, kvarena_footprint* footprint) {
  return write_footprint(
      options, target, footprint,
      [&](const KvCacheOptions& wanted, const CacheTarget& device) -> Result<CacheFootprint> {
        const Result<KvCacheOptions> fitted = fit_cache(wanted, device, budget_bytes);
        if (!fitted) return fitted.status();
        return cache_footprint(*fitted, device);
      });
}

kvarena_status kvarena_cache_describe(kvarena_cache* cache, const kvarena_status* status, char* out,
                                      size_t size, size_t* length) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    const TextTarget target{out, size, length};
    if (Status s = target.check(); !s) return s;
    if (status == nullptr) return refused_null();
    target.write(object.get().describe(from_c(*status)));
    return {};
  });
}

kvarena_status kvarena_cache_ask(kvarena_cache* cache, kvarena_cache_options* options) {
  return enter<CacheObject>(cache, [&](CacheObject& object) -> Status {
    if (Status s = check_target(options); !s) return s;
    write_struct(answer_of(object), options);
    return {};
  });
}

kvarena_status kvarena_layout_plan(const kvarena_cache_options* options, int64_t free_bytes,
                                   kvarena_pool_plan* plan) {
  return guarded([&]() -> Status {
    kvarena_cache_options given;
    if (Status s = read_struct(options, given); !s) return s;
    if (Status s = check_target(plan); !s) return s;
    const Result<KvLayout> layout = uniform_layout(given);
    if (!layout) return layout.status();
    const Result<PoolPlan> computed = plan_pool(*layout, size_from_c(given), free_bytes);
    if (!computed) return computed.status();
    kvarena_pool_plan result{};
    result.num_blocks = computed->num_blocks;
    result.pool_bytes = computed->pool_bytes;
    result.slack_bytes = computed->slack_bytes;
    result.block_bytes = layout->block_bytes();
    result.bytes_per_token = layout->bytes_per_token();
    write_struct(result, plan);
    return {};
  });
}

kvarena_status kvarena_layout_plane(const kvarena_cache_options* options, void* base,
                                    int64_t num_blocks, int32_t layer, int32_t kind,
                                    kvarena_plane* plane) {
  return guarded([&]() -> Status {
    kvarena_cache_options given;
    if (Status s = read_struct(options, given); !s) return s;
    if (Status s = check_target(plane); !s) return s;
    if (kind != KVARENA_KEY && kind != KVARENA_VALUE) {
      return invalid_option(Option::kind, kind, KVARENA_KEY, KVARENA_VALUE);
    }
    const Result<KvLayout> layout = uniform_layout(given);
    if (!layout) return layout.status();
    const Result<BlockOrder> order = order_from_c(given);
    if (!order) return order.status();
    const Result<KvLayerView> view =
        layer_view({*layout, *order, num_blocks}, static_cast<std::byte*>(base), layer);
    if (!view) return view.status();
    write_struct(capi::to_c(kind == KVARENA_KEY ? view->key : view->value, view->block_size,
                            view->num_blocks),
                 plane);
    return {};
  });
}
