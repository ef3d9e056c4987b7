// The cache of a plan.

#include "base/out_of_memory.hpp"
#include "capacity/amount.hpp"
#include "capacity/planning.hpp"
#include "capacity/share.hpp"
#include "kernels/decode/decode_workspace.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <optional>
#include <utility>

namespace kvarena::capacity {
namespace {

/// The query heads of a rank: a multiple of the KV heads of each group.
std::int32_t q_heads_of(const ModelSpec& model, const PlanOptions& o,
                        std::span<const GroupMemory> groups) {
  std::int64_t kv_heads = 1;
  for (const GroupMemory& group : groups) {
    if (group.num_kv_heads > 0) kv_heads = std::lcm(kv_heads, group.num_kv_heads);
  }
  const std::int64_t all = std::max(model.shape.num_q_heads, model.shape.num_kv_heads);
  const std::int64_t of_rank = std::max<std::int64_t>(ceil_div(all, o.tensor_parallel), 1);
  return static_cast<std::int32_t>(ceil_div(of_rank, kv_heads) * kv_heads);
}

/// The distance of checkpoints that is next to the default one, in whole blocks.
std::int64_t checkpoint_distance(std::int64_t block_size_tokens) noexcept {
  const std::int64_t usual = KvCacheOptions{}.checkpoint_every_tokens;
  return std::max(usual / block_size_tokens, std::int64_t{1}) * block_size_tokens;
}

}  // namespace

Result<PlannedCache> options_for(const ModelSpec& model, const PlanOptions& o,
                                 std::span<const GroupMemory> groups, std::int32_t stage,
                                 std::int64_t context_tokens) {
  const KvMemoryOptions kv = kv_options(model, o, stage);
  const auto dtype = dtype_of(kv.format);
  if (!dtype) return unsupported(Resource::dtype, kNoDType);
  const bool has_scales = kv.scale == ScaleKind::per_token_head;
  if (has_scales && *dtype == DType::int8) {
    return unsupported(Resource::scale, static_cast<std::uint64_t>(kv.scale));
  }
  PlannedCache planned;
  KvCacheOptions& cache = planned.options;
  if (groups.size() == 1 && groups.front().kind == CacheKind::full && !has_scales) {
    const GroupMemory& group = groups.front();
    cache.layout = {.num_layers = group.num_layers,
                    .num_kv_heads = group.num_kv_heads,
                    .head_dim_k = group.head_dim_k,
                    .head_dim_v = group.head_dim_v,
                    .dtype = *dtype,
                    .block_size_tokens = o.block_size_tokens};
  } else {
    Result<ModelGroups> made = groups_of(model, kv);
    if (!made) return made.status();
    const auto is_state = [](const LayerGroup& group) { return group.kind == PagedKind::state; };
    if (std::ranges::all_of(made->groups, is_state)) {
      return unsupported_option(Option::kind, static_cast<std::uint64_t>(PagedKind::state));
    }
    planned.groups = std::move(*made);
    cache.checkpoint_every_tokens = checkpoint_distance(o.block_size_tokens);
    cache.groups = planned.groups.groups;
    cache.page_sequence_tokens = longest_context(model);
  }
  cache.num_q_heads = q_heads_of(model, o, groups);
  cache.max_sequences = max_sequences_of(o);
  // A row has a token at least.
  cache.max_batch_rows =
      static_cast<std::int32_t>(std::min<std::int64_t>(cache.max_sequences, o.max_step_tokens));
  cache.max_sequence_tokens = context_tokens;
  cache.max_step_tokens = o.max_step_tokens;
  return planned;
}

FittedCache fit_planned_cache(const ModelSpec& model, const PlanOptions& options,
                              std::span<const GroupMemory> groups, std::int32_t stage,
                              std::int64_t context_tokens, std::int64_t budget_bytes) {
  if (!options.target || budget_bytes <= 0) return {};
  const Result<PlannedCache> cache = options_for(model, options, groups, stage, context_tokens);
  if (!cache) return {};
  const Result<KvCacheOptions> fitted = fit_cache(cache->options, *options.target, budget_bytes);
  if (!fitted) {
    if (fitted.status().code == StatusCode::insufficient_vram) return {.num_blocks = 0};
    return {};  // no kernel for it, or a pool past its largest: planned without a cache
  }
  const Result<CacheFootprint> footprint = cache_footprint(*fitted, *options.target);
  if (!footprint) return {};
  // A pool of one block more has tables twice as large at most.
  const std::int64_t block_bytes = footprint->pool_bytes / footprint->num_blocks;
  const std::int64_t table_bytes = footprint->device_bytes() - footprint->pool_bytes;
  const bool is_full = budget_bytes - footprint->device_bytes() < plus(block_bytes, table_bytes);
  return {.most_blocks = is_full ? KvLayout::kMaxBlocks : footprint->num_blocks,
          .num_blocks = footprint->num_blocks,
          .table_bytes = table_bytes,
          .workspace_bytes = footprint->workspace_bytes};
}

// The partial results of decode attention are computed; the rest is what the workspace has besides.
Formula workspace_formula(const KvCacheOptions& cache, const CacheTarget& target,
                          std::int64_t workspace_bytes) {
  kernels::DecodeLimits limits{.max_rows = cache.max_batch_rows,
                               .q_len = cache.max_decode_tokens,
                               .num_q_heads = cache.num_q_heads,
                               .num_kv_heads = cache.layout.num_kv_heads,
                               .head_dim = cache.layout.head_dim_k,
                               .num_sms = target.num_sms,
                               .kv_dtype = cache.layout.dtype};
  // Decode attention over fp8 has room for twice as many columns.
  kernels::DecodeLimits both = limits;
  both.q_len = std::max(both.q_len, 2 * kernels::kColumns * both.num_kv_heads / both.num_q_heads);
  if (kernels::may_have_two_operands(both)) limits.q_len = both.q_len;
  const std::int32_t dims[] = {64, 96, 128, 256};
  const bool has_decode =
      std::ranges::find(dims, limits.head_dim) != std::end(dims) &&
      limits.num_q_heads <= std::int64_t{limits.num_kv_heads} * kernels::kMaxDecodeGroup;
  if (target.kind != DeviceKind::cuda || !has_decode) return {workspace_bytes, "B"};
  const std::int64_t heads = std::int64_t{limits.num_kv_heads} * kernels::column_chunks(limits);
  const Formula thread_blocks(std::int64_t{limits.num_sms} * kernels::usual_shape(limits).per_sm);
  const Formula parts = Formula(limits.max_rows, "rows") +
                        rounded_down(Formula(kernels::kMaxWaves) * thread_blocks, heads) + 1;
  const Formula partial = parts * heads *
                          Formula(kernels::kColumns * kernels::column_operands(limits), "columns") *
                          (Formula(8) + Formula(4) * limits.head_dim).of("B");
  const std::int64_t rest = workspace_bytes - partial.value();
  if (rest < 0) return {workspace_bytes, "B"};
  return partial + Formula(rest, "B of many query columns and of schedules");
}

Result<PlannedCache> cache_options(const ModelSpec& model, const PlanOptions& options,
                                   const MemoryPlan& plan) try {
  std::vector<GroupMemory> groups;
  for (const GroupPlan& group : plan.groups) groups.push_back(group.memory);
  if (groups.empty()) return unsupported(Resource::num_groups);
  Result<PlannedCache> cache = options_for(model, options, groups, plan.stage, plan.context_tokens);
  if (!cache) return cache;
  if (!plan.weights_known) return unsupported(Resource::none);
  const bool has_pages = plan.page_bytes > 0;
  const std::int64_t unit_bytes = has_pages ? plan.page_bytes : groups.front().unit_bytes;
  KvCacheOptions& made = cache->options;
  made.size.num_blocks = has_pages ? plan.num_pages : plan.num_blocks;
  if (made.size.num_blocks == 0) {
    return insufficient_vram(static_cast<std::uint64_t>(unit_bytes), 0);
  }
  if (options.target) {
    const Result<CacheFootprint> footprint = cache_footprint(made, *options.target);
    if (!footprint) return footprint.status();
  }
  return cache;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace kvarena::capacity
