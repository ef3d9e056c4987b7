#include "capi/convert.hpp"

#include "capi/structs.hpp"

#include "kvarena/base/status.hpp"

#include <array>
#include <cstddef>

namespace kvarena::capi {
namespace {

constexpr std::array<DType, 6> kTypes{DType::f16,      DType::bf16, DType::f32,
                                      DType::fp8_e4m3, DType::int8, DType::latent_fp8};

// The numbers of the header are the library's.
static_assert(KVARENA_LIMIT_EXCEEDED == static_cast<int>(StatusCode::limit_exceeded));
static_assert(KVARENA_DEVICE_ERROR == static_cast<int>(StatusCode::device_error));
static_assert(KVARENA_EXHAUSTED == static_cast<int>(StatusCode::exhausted));
static_assert(KVARENA_RESOURCE_PAGE == static_cast<int>(Resource::page));
static_assert(KVARENA_RESOURCE_POINTER == static_cast<int>(Resource::pointer));
static_assert(KVARENA_RESOURCE_NUM_GROUPS == static_cast<int>(Resource::num_groups));
static_assert(KVARENA_RESOURCE_STEP == static_cast<int>(Resource::step));
static_assert(KVARENA_BLOCK_ABSENT == static_cast<int>(BlockState::absent));
static_assert(KVARENA_CONTENT_FAILED == static_cast<int>(BlockContent::failed));
static_assert(KVARENA_SCRUB_ALWAYS == static_cast<int>(Scrub::always));
static_assert(KVARENA_LAYER_MAJOR == static_cast<int>(BlockOrder::layer_major));
static_assert(KVARENA_IMPORT_FAILED == static_cast<int>(ImportState::failed));
static_assert(KVARENA_MAX_LARGEST == Explanation::kMaxHolders);
static_assert(KVARENA_MAX_SALTS == Explanation::kMaxSalts);

/// `given`, or the default where it is zero.
template <class Value>
Value or_default(Value given, Value standard) noexcept {
  return given == 0 ? standard : given;
}

/// The same where -1 turns off what zero cannot.
template <class Value>
Value or_off(Value given, Value standard) noexcept {
  return given == -1 ? 0 : or_default(given, standard);
}

}  // namespace

Result<DType> dtype_from_c(std::int32_t number) noexcept {
  if (number < 0 || number >= static_cast<std::int32_t>(kTypes.size())) {
    return invalid_argument(Resource::dtype, number, 0, std::ssize(kTypes) - 1);
  }
  return kTypes[static_cast<std::size_t>(number)];
}

std::uint64_t subject_to_c(const Status& status) noexcept {
  const bool is_dtype = status.resource == Resource::dtype || status.option == Option::dtype;
  if (!is_dtype || status.subject >= kTypes.size()) return status.subject;
  return static_cast<std::uint64_t>(to_c(static_cast<DType>(status.subject)));
}

std::uint64_t subject_from_c(const Status& status) noexcept {
  const bool is_dtype = status.resource == Resource::dtype || status.option == Option::dtype;
  if (!is_dtype || status.subject >= kTypes.size()) return status.subject;
  return static_cast<std::uint64_t>(kTypes[status.subject]);
}

std::int32_t to_c(DType dtype) noexcept {
  for (std::size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i] == dtype) return static_cast<std::int32_t>(i);
  }
  return -1;
}

Result<Urgency> urgency_from_c(std::int32_t number, Urgency standard) noexcept {
  switch (number) {
    case KVARENA_URGENCY_DEFAULT: return standard;
    case KVARENA_GROWTH: return Urgency::growth;
    case KVARENA_ADMISSION: return Urgency::admission;
    default: return invalid_argument(Resource::urgency, number, 0, KVARENA_ADMISSION);
  }
}

std::int32_t to_c(Urgency urgency) noexcept {
  return urgency == Urgency::growth ? KVARENA_GROWTH : KVARENA_ADMISSION;
}

Result<EvictionPolicy> eviction_from_c(std::int32_t number) noexcept {
  constexpr auto kLast = static_cast<std::int32_t>(kEvictionPolicies.back());
  if (number < 0 || number > kLast) return invalid_option(Option::eviction, number, 0, kLast);
  return static_cast<EvictionPolicy>(number);
}

RetentionHint retention_from_c(std::int32_t priority, std::int64_t expires_at) noexcept {
  return {.priority = priority, .expires_at = expires_at == 0 ? RetentionHint::kNever : expires_at};
}

Result<BlockOrder> order_from_c(const kvarena_cache_options& options) noexcept {
  if (options.block_order == KVARENA_BLOCK_MAJOR) return BlockOrder::block_major;
  if (options.block_order == KVARENA_LAYER_MAJOR) return BlockOrder::layer_major;
  return invalid_option(Option::order, options.block_order, 0, 1);
}

Result<UniformLayoutOptions> layout_from_c(const kvarena_cache_options& options) noexcept {
  UniformLayoutOptions layout;
  layout.num_layers = options.num_layers;
  layout.num_kv_heads = options.num_kv_heads;
  layout.head_dim_k = options.head_dim_k;
  layout.head_dim_v = options.head_dim_v;
  layout.block_size_tokens = or_default(options.block_size_tokens, layout.block_size_tokens);
  const Result<DType> dtype = dtype_from_c(options.dtype);
  if (!dtype) return invalid_option(Option::dtype, options.dtype, 0, std::ssize(kTypes) - 1);
  layout.dtype = *dtype;
  switch (options.tile_order) {
    case KVARENA_TILE_BEST: break;
    case KVARENA_TILE_ROWS: layout.tile_order = TileOrder::rows; break;
    case KVARENA_TILE_CHUNKED: layout.tile_order = TileOrder::chunked; break;
    default: return invalid_option(Option::tile_order, options.tile_order, 0, KVARENA_TILE_CHUNKED);
  }
  return layout;
}

PoolSize size_from_c(const kvarena_cache_options& options) noexcept {
  PoolSize size;
  size.num_blocks = options.num_blocks;
  size.budget_bytes = options.budget_bytes;
  if (options.all_free_but_bytes == -1) {
    size.all_free_but_bytes = 0;
  } else if (options.all_free_but_bytes != 0) {
    size.all_free_but_bytes = options.all_free_but_bytes;
  }
  return size;
}

/// Reads what concerns the prefix cache.
static Status read_prefix(const kvarena_cache_options& options, KvCacheOptions& result) noexcept {
  const Result<EvictionPolicy> eviction = eviction_from_c(options.eviction);
  if (!eviction) return eviction.status();
  if (options.prefix_duplicates < 0 || options.prefix_duplicates > KVARENA_WAIT) {
    return invalid_option(Option::duplicates, options.prefix_duplicates, 0, KVARENA_WAIT);
  }
  result.eviction = *eviction;
  result.prefix_cache = {.is_on = options.prefix_cache != 0,
                         .hash_key = {options.prefix_key_low, options.prefix_key_high},
                         .max_extra_keys = options.prefix_extra_keys,
                         .history_entries = options.prefix_history,
                         .duplicates = static_cast<DuplicateRule>(options.prefix_duplicates),
                         .max_accounts = options.prefix_accounts,
                         .ghost_blocks = options.prefix_ghost_blocks,
                         .share_parts = options.prefix_share_parts != 0};
  return {};
}

Result<KvCacheOptions> options_from_c(const kvarena_cache_options& options, GroupOptions& groups) {
  KvCacheOptions result;
  if (Status s = groups_from_c(options, groups); !s) return s;
  result.groups = groups.groups;
  result.page_sequence_tokens = options.page_sequence_tokens;
  result.checkpoint_every_tokens =
      or_off(options.checkpoint_every_tokens, result.checkpoint_every_tokens);
  const Result<UniformLayoutOptions> layout = layout_from_c(options);
  if (!layout) return layout.status();
  const Result<BlockOrder> order = order_from_c(options);
  if (!order) return order.status();
  if (options.scrub < 0 || options.scrub > KVARENA_SCRUB_ALWAYS) {
    return invalid_option(Option::scrub, options.scrub, 0, KVARENA_SCRUB_ALWAYS);
  }
  if (options.all_free_but_bytes < -1) {
    return invalid_option(Option::all_free_but_bytes, options.all_free_but_bytes, -1, INT64_MAX);
  }
  result.layout = *layout;
  result.size = size_from_c(options);
  result.order = *order;
  result.scrub = static_cast<Scrub>(options.scrub);
  result.num_q_heads = options.num_q_heads;
  result.max_sequences = or_default(options.max_sequences, result.max_sequences);
  result.max_sequence_tokens = options.max_sequence_tokens;
  result.max_batch_rows = options.max_batch_rows;
  result.max_step_tokens = or_default(options.max_step_tokens, result.max_step_tokens);
  result.max_batch_blocks = options.max_batch_blocks;
  result.watermark_blocks = options.watermark_blocks;
  result.window_tokens = options.window_tokens;
  result.steps_in_flight = or_default(options.steps_in_flight, result.steps_in_flight);
  result.max_open_tickets = or_default(options.max_open_tickets, result.max_open_tickets);
  result.max_fence_entries = options.max_fence_entries;
  result.max_table_pages = options.max_table_pages;
  result.eager_retire = options.eager_retire != 0;
  result.num_threads = options.num_threads;
  result.max_decode_tokens = or_default(options.max_decode_tokens, result.max_decode_tokens);
  result.batch_invariant_tokens = options.batch_invariant_tokens;
  result.draft_trees = options.draft_trees != 0;
  result.max_shared_rows = or_off(options.max_shared_rows, result.max_shared_rows);
  result.max_pins = or_off(options.max_pins, result.max_pins);
  result.home_stream = options.stream;
  result.audit_blocks_per_step =
      or_off(options.audit_blocks_per_step, result.audit_blocks_per_step);
  if (Status status = read_prefix(options, result); !status) return status;
  return result;
}

kvarena_plane to_c(const PlaneView& plane, std::int32_t block_size,
                   std::int64_t num_blocks) noexcept {
  kvarena_plane result{};
  result.base = plane.base;
  result.block_stride_bytes = plane.block_stride;
  result.head_stride_bytes = plane.head_stride;
  result.token_stride_bytes = plane.token_stride;
  result.num_blocks = num_blocks;
  result.num_heads = plane.num_heads;
  result.head_dim = plane.head_dim;
  result.block_size = block_size;
  result.dtype = to_c(plane.dtype);
  result.tile_order =
      plane.tile_order == TileOrder::chunked ? KVARENA_TILE_CHUNKED : KVARENA_TILE_ROWS;
  result.scales_offset_bytes = plane.scales_offset;
  return result;
}

namespace {

Result<PlaneView> plane_from_c(const kvarena_plane& plane) noexcept {
  const Result<DType> dtype = dtype_from_c(plane.dtype);
  if (!dtype) return dtype.status();
  if (plane.tile_order < 0 || plane.tile_order > KVARENA_TILE_CHUNKED) {
    return invalid_argument(Resource::tile_order, plane.tile_order, 0, KVARENA_TILE_CHUNKED);
  }
  PlaneView view;
  view.base = static_cast<std::byte*>(plane.base);
  view.block_stride = plane.block_stride_bytes;
  view.head_stride = plane.head_stride_bytes;
  view.token_stride = plane.token_stride_bytes;
  view.num_heads = plane.num_heads;
  view.head_dim = plane.head_dim;
  view.dtype = *dtype;
  view.tile_order = plane.tile_order == KVARENA_TILE_CHUNKED ? TileOrder::chunked : TileOrder::rows;
  view.scales_offset = plane.scales_offset_bytes;
  return view;
}

}  // namespace

Result<KvLayerView> view_from_c(const kvarena_plane& key, const kvarena_plane& value) noexcept {
  const Result<PlaneView> k = plane_from_c(key);
  if (!k) return k.status();
  const Result<PlaneView> v = plane_from_c(value);
  if (!v) return v.status();
  if (value.block_size != key.block_size) {
    return invalid_argument(Resource::block_size, value.block_size, key.block_size, key.block_size);
  }
  if (value.num_blocks != key.num_blocks) {
    return invalid_argument(Resource::num_blocks, value.num_blocks, key.num_blocks, key.num_blocks);
  }
  return KvLayerView{*k, *v, key.block_size, key.num_blocks};
}

void add_blocks(const BlockStats& blocks, kvarena_stats& stats) noexcept {
  stats.num_blocks = blocks.num_blocks;
  stats.free_blocks = blocks.free;
  stats.referenced = blocks.referenced;
  stats.fenced = blocks.fenced;
  stats.evictable = blocks.evictable;
  stats.offline = blocks.offline;
  stats.reserved_blocks = blocks.reserved;
  stats.watermark = blocks.watermark;
  stats.holders = blocks.holders;
  stats.references = blocks.references;
  stats.fence_entries = blocks.fence_entries;
  stats.peak_allocated = blocks.peak_allocated;
  stats.holders_ever = blocks.holders_ever;
  stats.allocations = blocks.allocations;
  stats.releases = blocks.releases;
  stats.evictions = blocks.evictions;
  stats.exhaustions = blocks.exhaustions;
}

void add_tables(const TableStats& tables, kvarena_stats& stats) noexcept {
  stats.sequences = tables.sequences;
  stats.tokens = tables.tokens;
  stats.entries = tables.entries;
  stats.waste_tokens = tables.waste_tokens;
  stats.pages_used = tables.pages_used;
  stats.pages_total = tables.pages_total;
  stats.sequences_ever = tables.sequences_ever;
  stats.copies_on_write = tables.copies_on_write;
  stats.pins = tables.pins;
  stats.pinned_entries = tables.pinned_entries;
}

void add_steps(const PoolSnapshot& snapshot, kvarena_stats& stats) noexcept {
  stats.step = snapshot.step;
  stats.published_ns = snapshot.published_ns;
  stats.steps_lost = snapshot.steps_lost;
  stats.missed_launches = snapshot.missed_launches;
  stats.awaited_tickets = snapshot.awaited_tickets;
  stats.audit_blocks = snapshot.audit.blocks_checked;
  stats.audit_passes = snapshot.audit.passes;
  stats.audit_failure = to_c(snapshot.audit.failure);
}

kvarena_holder_report to_c(const HolderReport& holder) noexcept {
  kvarena_holder_report report{};
  report.holder = holder.holder.value;
  report.number = holder.number;
  report.owner = holder.owner;
  report.purpose = holder.purpose.data();  // registered as a C string
  report.references = holder.references;
  report.reserved = holder.reserved;
  report.since_ns = holder.since_ns;
  report.deadline_ns = holder.deadline_ns;
  return report;
}

kvarena_explanation to_c(const Explanation& explanation) noexcept {
  kvarena_explanation result{};
  result.requested = explanation.requested;
  result.usable = explanation.usable;
  result.promised = explanation.promised;
  result.missing = explanation.missing;
  result.num_blocks = explanation.stats.num_blocks;
  result.free_blocks = explanation.stats.free;
  result.referenced = explanation.stats.referenced;
  result.fenced = explanation.stats.fenced;
  result.evictable = explanation.stats.evictable;
  result.offline = explanation.stats.offline;
  result.reserved_blocks = explanation.stats.reserved;
  result.watermark = explanation.stats.watermark;
  result.fenced_returning = explanation.fenced_returning;
  result.oldest_open_ticket = explanation.oldest_open_ticket.value;
  result.urgency = to_c(explanation.urgency);
  result.fits = explanation.fits ? 1 : 0;
  result.num_largest = static_cast<std::int64_t>(explanation.num_largest);
  for (std::size_t i = 0; i < Explanation::kMaxHolders; ++i) {
    if (i < explanation.num_largest) result.largest[i] = to_c(explanation.largest[i]);
    result.returning[i] = i < explanation.num_largest ? explanation.returning[i] : -1;
  }
  result.num_salts = static_cast<std::int64_t>(explanation.num_salts);
  for (std::size_t i = 0; i < explanation.num_salts; ++i) {
    const SaltShare& share = explanation.evictable_salts[i];
    result.evictable_salts[i] = {share.salt, share.blocks};
  }
  result.evictable_of_others = explanation.evictable_of_others;
  return result;
}

}  // namespace kvarena::capi
