#include "capacity/planning.hpp"

#include "base/out_of_memory.hpp"
#include "capacity/amount.hpp"
#include "capacity/share.hpp"
#include "kernels/decode/decode_workspace.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

namespace kvarena::capacity {
namespace {

bool is_quantised(const StorageFormat& format) noexcept {
  return format.name == "int8" || format.name.starts_with("fp8");
}

}  // namespace

// ---- the cache of a plan ------------------------------------------------------------------------

Result<KvCacheOptions> options_for(const ModelSpec& model, const PlanOptions& o,
                                   std::span<const GroupMemory> groups,
                                   std::int64_t context_tokens) {
  if (groups.size() != 1) return unsupported(Resource::num_groups, groups.size());
  const GroupMemory& group = groups.front();
  const auto kind = static_cast<std::uint64_t>(group.kind);
  if (group.kind == CacheKind::window || group.kind == CacheKind::chunked) {
    return unsupported(Resource::window, kind);
  }
  if (group.kind != CacheKind::full) return unsupported(Resource::num_planes, kind);
  const StorageFormat* own = find_storage_format(model.kv_format);
  const StorageFormat* format = o.kv ? &*o.kv : own;
  const auto dtype = format != nullptr ? dtype_of(*format) : std::nullopt;
  if (!dtype) return unsupported(Resource::dtype);
  if (o.kv_scale == ScaleKind::per_token_head && bytes_of(*dtype) == 1) {
    return unsupported(Resource::scale, static_cast<std::uint64_t>(o.kv_scale));
  }
  const std::int64_t q_heads =
      ceil_div(std::max(model.shape.num_q_heads, model.shape.num_kv_heads), o.tensor_parallel);
  const std::int64_t group_size = ceil_div(std::max<std::int64_t>(q_heads, 1), group.num_kv_heads);
  KvCacheOptions cache;
  cache.layout = {.num_layers = group.num_layers,
                  .num_kv_heads = group.num_kv_heads,
                  .head_dim_k = group.head_dim_k,
                  .head_dim_v = group.head_dim_v,
                  .dtype = *dtype,
                  .block_size_tokens = o.block_size_tokens};
  cache.num_q_heads = static_cast<std::int32_t>(group_size * group.num_kv_heads);
  cache.max_sequences = max_sequences_of(o);
  // A row has a token at least.
  cache.max_batch_rows =
      static_cast<std::int32_t>(std::min<std::int64_t>(cache.max_sequences, o.max_step_tokens));
  cache.max_sequence_tokens = context_tokens;
  cache.max_step_tokens = o.max_step_tokens;
  return cache;
}

FittedCache fit_planned_cache(const ModelSpec& model, const PlanOptions& options,
                              std::span<const GroupMemory> groups, std::int64_t context_tokens,
                              std::int64_t budget_bytes) {
  if (!options.target || budget_bytes <= 0) return {};
  const Result<KvCacheOptions> cache = options_for(model, options, groups, context_tokens);
  if (!cache) return {};
  const Result<KvCacheOptions> fitted = fit_cache(*cache, *options.target, budget_bytes);
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
  const kernels::DecodeLimits limits{.max_rows = cache.max_batch_rows,
                                     .q_len = cache.max_decode_tokens,
                                     .num_q_heads = cache.num_q_heads,
                                     .num_kv_heads = cache.layout.num_kv_heads,
                                     .head_dim = cache.layout.head_dim_k,
                                     .num_sms = target.num_sms,
                                     .kv_dtype = cache.layout.dtype};
  const std::int32_t dims[] = {64, 96, 128, 256};
  const bool has_decode =
      std::ranges::find(dims, limits.head_dim) != std::end(dims) &&
      limits.num_q_heads <= std::int64_t{limits.num_kv_heads} * kernels::kMaxDecodeGroup;
  if (target.kind != DeviceKind::cuda || !has_decode) return {workspace_bytes, "B"};
  const std::int64_t heads = std::int64_t{limits.num_kv_heads} * kernels::column_chunks(limits);
  const Formula thread_blocks(std::int64_t{limits.num_sms} * kernels::decode_shape(limits).per_sm);
  const Formula parts = Formula(limits.max_rows, "rows") +
                        rounded_down(Formula(kernels::kMaxWaves) * thread_blocks, heads) + 1;
  const Formula partial = parts * heads * Formula(kernels::kColumns, "columns") *
                          (Formula(8) + Formula(4) * limits.head_dim).of("B");
  const std::int64_t rest = workspace_bytes - partial.value();
  if (rest < 0) return {workspace_bytes, "B"};
  return partial + Formula(rest, "B of many query columns and of schedules");
}

Result<KvCacheOptions> cache_options(const ModelSpec& model, const PlanOptions& options,
                                     const MemoryPlan& plan) try {
  std::vector<GroupMemory> groups;
  for (const GroupPlan& group : plan.groups) groups.push_back(group.memory);
  Result<KvCacheOptions> cache = options_for(model, options, groups, plan.context_tokens);
  if (!cache) return cache;
  if (!plan.weights_known) return unsupported(Resource::none);
  if (plan.num_blocks == 0) {
    return insufficient_vram(static_cast<std::uint64_t>(groups.front().unit_bytes), 0);
  }
  cache->size.num_blocks = plan.num_blocks;
  if (options.target) {
    const Result<CacheFootprint> footprint = cache_footprint(*cache, *options.target);
    if (!footprint) return footprint.status();
  }
  return cache;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

// ---- a stage ------------------------------------------------------------------------------------

KvMemoryOptions kv_options(const ModelSpec& model, const PlanOptions& o, std::int32_t stage) {
  const StorageFormat* own = find_storage_format(model.kv_format);
  KvMemoryOptions kv{.format = o.kv             ? *o.kv
                               : own != nullptr ? *own
                                                : *find_storage_format("bf16"),
                     .kept = o.kept,
                     .block_size_tokens = o.block_size_tokens,
                     .tensor_parallel = o.tensor_parallel,
                     .pipeline_parallel = o.pipeline_parallel,
                     .stage = stage};
  if (is_quantised(kv.format)) kv.scale = o.kv_scale;
  return kv;
}

std::int64_t StageMemory::pool_bytes(std::int64_t sequences,
                                     std::int64_t length_tokens) const noexcept {
  std::int64_t sum = 0;
  for (const GroupMemory& group : groups) {
    const std::int64_t units = pool_units(group, sequences, length_tokens, step_tokens);
    sum = plus(sum, times(units, group.unit_bytes));
  }
  return sum;
}

bool StageMemory::holds_beside(const FittedCache& its, std::int64_t sequences,
                               std::int64_t length_tokens) const noexcept {
  if (cache_budget_bytes <= its.table_bytes || its.num_blocks == 0) return sequences == 0;
  if (pool_bytes(sequences, length_tokens) > cache_budget_bytes - its.table_bytes) return false;
  return std::ranges::all_of(groups, [&](const GroupMemory& group) {
    return group.block_size_tokens == 0 ||
           pool_units(group, sequences, length_tokens, step_tokens) <= its.num_blocks;
  });
}

std::int64_t StageMemory::sequences(std::int64_t length_tokens) const noexcept {
  return longest_that([&](std::int64_t count) { return holds(count, length_tokens); }, 0,
                      kMostBatch + 1);
}

PlanLimit StageMemory::limit_of(const FittedCache& its, std::int64_t sequences,
                                std::int64_t length_tokens) const noexcept {
  if (cache_budget_bytes <= its.table_bytes) return PlanLimit::weights;
  const bool is_past_blocks = std::ranges::any_of(groups, [&](const GroupMemory& group) {
    return group.block_size_tokens > 0 &&
           pool_units(group, sequences, length_tokens, step_tokens) > its.most_blocks;
  });
  const std::int64_t left = cache_budget_bytes - its.table_bytes;
  return is_past_blocks && pool_bytes(sequences, length_tokens) <= left ? PlanLimit::num_blocks
                                                                        : PlanLimit::kv_cache;
}

std::int64_t overhead_of(const PlanOptions& o) noexcept {
  return plus(o.context_overhead_bytes, o.graph_bytes);
}

Result<StageMemory> memory_of_stage(const ModelSpec& model, const PlanOptions& o,
                                    std::int64_t context, std::int32_t stage) {
  Result<std::vector<GroupMemory>> groups = group_memory(model, kv_options(model, o, stage));
  if (!groups) return groups.status();
  StageMemory memory;
  memory.step_tokens = o.max_step_tokens;
  memory.groups = *std::move(groups);
  memory.weights_bytes = weights_of_rank(model, o, stage).bytes;
  memory.activation_bytes = activations_of_rank(model, o).bytes;
  const std::int64_t fixed =
      plus(plus(memory.weights_bytes, memory.activation_bytes), overhead_of(o));
  memory.cache_budget_bytes = fixed == kMostAmount ? -1 : budget_of(o).value() - fixed;
  memory.cache = fit_planned_cache(model, o, memory.groups, context, memory.cache_budget_bytes);
  return memory;
}

bool has_less_room(const StageMemory& a, const StageMemory& b, std::int64_t context) noexcept {
  const std::int64_t x = a.sequences(context);
  const std::int64_t y = b.sequences(context);
  return x != y ? x < y : a.kv_budget_bytes() < b.kv_budget_bytes();
}

// Tables grow with the length too: between what fits beside the longest tables and what fits beside
// the shortest, each length is tried.
LongestContext longest_that_fits(const ModelSpec& model, const PlanOptions& o, std::int32_t stage,
                                 const StageMemory& memory, std::int64_t longest) {
  const auto cache_of = [&](std::int64_t length) {
    return fit_planned_cache(model, o, memory.groups, length, memory.cache_budget_bytes);
  };
  const auto beside = [&](const FittedCache& cache, std::int64_t most) {
    return longest_that(
        [&](std::int64_t length) { return memory.holds_beside(cache, o.batch, length); }, 0,
        most + 1);
  };
  LongestContext found{.tokens = beside(cache_of(1), longest)};
  if (found.tokens > 0) {
    const std::int64_t least = beside(cache_of(found.tokens), found.tokens);
    found.tokens = longest_that(
        [&](std::int64_t length) { return memory.holds_beside(cache_of(length), o.batch, length); },
        least, found.tokens + 1);
  }
  found.kv_budget_bytes =
      memory.cache_budget_bytes - cache_of(std::max<std::int64_t>(found.tokens, 1)).table_bytes;
  found.pool_bytes = memory.pool_bytes(o.batch, found.tokens);
  if (found.tokens == longest) return found;
  const std::int64_t next = found.tokens + 1;
  found.limited_by = memory.limit_of(cache_of(next), o.batch, next);
  if (found.limited_by == PlanLimit::weights && o.batch > o.max_sequences) {
    PlanOptions one = o;
    one.batch = 1;
    const Result<StageMemory> alone = memory_of_stage(model, one, next, stage);
    if (alone && alone->kv_budget_bytes() > 0) found.limited_by = PlanLimit::activations;
  }
  return found;
}

std::set<std::int32_t> stages_to_plan(const ModelSpec& model, const PlanOptions& options) {
  const std::int32_t last = options.pipeline_parallel - 1;
  std::set<std::int32_t> stages = {0, last};
  if (last < 2) return stages;
  const auto shares = layers_by_stage(model.groups, options.pipeline_parallel);
  std::set<std::vector<std::int64_t>> seen;
  for (std::int32_t stage = 1; stage < last; ++stage) {
    const auto& layers = shares[static_cast<std::size_t>(stage)];
    std::vector<std::int64_t> counts(layers.begin(), layers.end());
    for (const ParameterPart& part : model.parts) {
      counts.push_back(
          parts_of_stage(part, model.shape.num_layers, options.pipeline_parallel, stage));
    }
    if (seen.insert(std::move(counts)).second) stages.insert(stage);
  }
  return stages;
}

namespace {

/// `sequences` of a length that fit on a stage.
LargestBatch batch_of(const StageMemory& memory, std::int64_t sequences,
                      std::int64_t length_tokens) {
  return {.sequences = sequences,
          .limited_by = memory.limit_of(memory.cache, sequences + 1, length_tokens),
          .kv_budget_bytes = memory.kv_budget_bytes(),
          .pool_bytes = memory.pool_bytes(sequences, length_tokens),
          .bytes_each = peak_bytes(memory.groups, length_tokens)};
}

/// The most sequences that fit where those of one step more do not, beside their own logits and
/// tables: on the stage that they do not fit on.
LargestBatch batch_beside_its_own(const ModelSpec& model, const PlanOptions& options,
                                  std::int64_t sequences, std::int64_t length_tokens) {
  const auto with = [&](std::int64_t batch, std::int32_t stage) {
    PlanOptions changed = options;
    changed.batch = batch;
    return memory_of_stage(model, changed, length_tokens, stage);
  };
  for (const std::int32_t stage : stages_to_plan(model, options)) {
    const Result<StageMemory> more = with(sequences + 1, stage);
    if (!more || more->holds(sequences + 1, length_tokens)) continue;
    const Result<StageMemory> one = with(1, stage);
    const Result<StageMemory> own = with(sequences, stage);
    if (!one || !own) break;
    LargestBatch batch = batch_of(*own, sequences, length_tokens);
    const std::int64_t grown = one->kv_budget_bytes() - more->kv_budget_bytes();
    batch.limited_by = grown > more->pool_bytes(sequences + 1, length_tokens)
                           ? PlanLimit::activations
                           : PlanLimit::kv_cache;
    return batch;
  }
  return {.sequences = sequences};
}

}  // namespace

LargestBatch batch_that_fits(const ModelSpec& model, const PlanOptions& options,
                             std::int64_t length_tokens) {
  PlanOptions changed = options;
  changed.batch = 1;
  LargestBatch most{.sequences = kMostBatch};
  std::optional<StageMemory> tightest;
  for (const std::int32_t stage : stages_to_plan(model, options)) {
    Result<StageMemory> memory = memory_of_stage(model, changed, length_tokens, stage);
    if (!memory) return {};
    if (tightest && !has_less_room(*memory, *tightest, length_tokens)) continue;
    tightest = *std::move(memory);
    const std::int64_t sequences = tightest->sequences(length_tokens);
    if (sequences < kMostBatch) most = batch_of(*tightest, sequences, length_tokens);
  }
  most.beside_one = most.sequences;
  if (most.sequences <= options.max_sequences) return most;
  const auto is_held = [&](std::int64_t batch) {
    changed.batch = batch;
    return fits(model, changed, length_tokens);
  };
  const std::int64_t held = longest_that(is_held, options.max_sequences, most.sequences + 1);
  if (held == most.sequences) return most;
  LargestBatch beside_its_own = batch_beside_its_own(model, options, held, length_tokens);
  beside_its_own.beside_one = most.sequences;
  return beside_its_own;
}

bool fits(const ModelSpec& model, const PlanOptions& options, std::int64_t context_tokens) {
  if (model.shape.max_position > 0 && context_tokens > model.shape.max_position) return false;
  const std::set<std::int32_t> stages = stages_to_plan(model, options);
  return std::ranges::all_of(stages, [&](std::int32_t stage) {
    const Result<StageMemory> memory = memory_of_stage(model, options, context_tokens, stage);
    return memory && memory->holds(options.batch, context_tokens);
  });
}

}  // namespace kvarena::capacity
