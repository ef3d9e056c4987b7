#include "kvarena/capacity/memory_plan.hpp"

#include "base/grouped.hpp"
#include "capacity/amount.hpp"
#include "capacity/planned_cache.hpp"
#include "capacity/rank_memory.hpp"
#include "capacity/share.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostBatch = std::int64_t{1} << 24;

Status check(const PlanOptions& o) noexcept {
  const struct {
    Resource argument;
    std::int64_t value, smallest, largest;
  } ranges[] = {
      {Resource::device_memory, o.memory_bytes, 1, kMostAmount},
      {Resource::utilization, o.utilization_permille, 1, 1000},
      {Resource::sequence_length, o.context_tokens, 0, kMostTokens},
      {Resource::num_sequences, o.batch, 1, kMostBatch},
      {Resource::num_ranks, o.data_parallel, 1, kMostRanks},
      {Resource::num_sequences, o.max_sequences, 1, kMostBatch},
      {Resource::num_tokens, o.max_step_tokens, 1, kMostTokens},
      {Resource::device_memory, o.context_overhead_bytes, 0, kMostAmount},
      {Resource::device_memory, o.graph_bytes, 0, kMostAmount},
  };
  for (const auto& r : ranges) {
    if (r.value >= r.smallest && r.value <= r.largest) continue;
    return invalid_argument(r.argument, r.value, r.smallest, r.largest);
  }
  return check_ranks(o.tensor_parallel, o.pipeline_parallel, 0);
}

bool is_quantised(const StorageFormat& format) noexcept {
  return format.name == "int8" || format.name.starts_with("fp8");
}

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

/// What a stage takes, and what it leaves for K and V.
struct StageMemory {
  std::vector<GroupMemory> groups;
  std::int64_t weights_bytes = 0;
  std::int64_t activation_bytes = 0;
  std::int64_t cache_budget_bytes = 0;  // for pools and tables; negative: the rest does not fit
  FittedCache cache;                    // of sequences up to the context
  std::vector<PlanLine> lines;

  /// For pools alone.
  std::int64_t kv_budget_bytes() const noexcept { return cache_budget_bytes - cache.table_bytes; }
  /// Sequences of that length that fit, at the most blocks they hold on their way.
  std::int64_t sequences(std::int64_t length_tokens) const noexcept {
    return sequences_beside(cache, length_tokens);
  }
  /// The same beside the tables of a cache.
  std::int64_t sequences_beside(const FittedCache& its, std::int64_t length_tokens) const noexcept {
    const std::int64_t left = cache_budget_bytes - its.table_bytes;
    if (left <= 0 || its.num_blocks == 0) return 0;
    const std::int64_t each = peak_bytes(groups, length_tokens);
    std::int64_t most = each == 0 ? kMostBatch : left / each;
    for (const GroupMemory& group : groups) {
      const std::int64_t units = peak_units(group, length_tokens);
      if (group.block_size_tokens > 0 && units > 0) most = std::min(most, its.num_blocks / units);
    }
    return most;
  }
};

std::int64_t overhead_of(const PlanOptions& o) noexcept {
  return plus(o.context_overhead_bytes, o.graph_bytes);
}

std::int64_t budget_of(const PlanOptions& o) noexcept {
  const std::int64_t permille = o.utilization_permille;
  return o.memory_bytes / 1000 * permille + o.memory_bytes % 1000 * permille / 1000;
}

Result<StageMemory> memory_of_stage(const ModelSpec& model, const PlanOptions& o,
                                    std::int64_t context, std::int32_t stage) {
  Result<std::vector<GroupMemory>> groups = group_memory(model, kv_options(model, o, stage));
  if (!groups) return groups.status();
  StageMemory memory;
  memory.groups = *std::move(groups);
  memory.weights_bytes = weights_of_rank(model, o, stage, &memory.lines);
  memory.activation_bytes = activations_of_rank(model, o, &memory.lines);
  const std::int64_t fixed =
      plus(plus(memory.weights_bytes, memory.activation_bytes), overhead_of(o));
  memory.cache_budget_bytes = fixed == kMostAmount ? -1 : budget_of(o) - fixed;
  memory.cache = fit_planned_cache(model, o, memory.groups, context, memory.cache_budget_bytes);
  return memory;
}

/// Less room: fewer sequences, then fewer bytes.
bool has_less_room(const StageMemory& a, const StageMemory& b, std::int64_t context) noexcept {
  const std::int64_t x = a.sequences(context);
  const std::int64_t y = b.sequences(context);
  return x != y ? x < y : a.kv_budget_bytes() < b.kv_budget_bytes();
}

/// The longest length for which `fits` holds: it does for all up to `does`, not for `does_not`.
template <class Fits>
std::int64_t longest_that(Fits fits, std::int64_t does, std::int64_t does_not) {
  while (does_not - does > 1) {
    const std::int64_t middle = does + (does_not - does) / 2;
    (fits(middle) ? does : does_not) = middle;
  }
  return does;
}

/// The longest length, at most `longest`, of which `batch` sequences fit. Tables grow with it too:
/// between what fits beside the longest tables and what fits beside the shortest, each is tried.
std::int64_t longest_that_fits(const ModelSpec& model, const PlanOptions& o,
                               const StageMemory& memory, std::int64_t longest) {
  const auto cache_of = [&](std::int64_t length) {
    return fit_planned_cache(model, o, memory.groups, length, memory.cache_budget_bytes);
  };
  const auto beside = [&](const FittedCache& cache, std::int64_t most) {
    return longest_that(
        [&](std::int64_t length) { return memory.sequences_beside(cache, length) >= o.batch; }, 0,
        most + 1);
  };
  const std::int64_t most = beside(cache_of(1), longest);
  if (most == 0) return 0;
  const std::int64_t least = beside(cache_of(most), most);
  return longest_that(
      [&](std::int64_t length) {
        return memory.sequences_beside(cache_of(length), length) >= o.batch;
      },
      least, most + 1);
}

/// Pools for as many sequences as fit; what they leave goes to the group whose blocks come first.
Status plan_pools(const StageMemory& memory, MemoryPlan* plan) {
  const std::int64_t context = plan->context_tokens;
  std::int64_t sequences = memory.sequences(context);
  std::int64_t length = context;
  if (sequences == 0) {
    length = longest_that([&](std::int64_t l) { return memory.sequences(l) >= 1; }, 0, context + 1);
    sequences = length > 0 ? 1 : 0;
  }
  std::int64_t left = std::max<std::int64_t>(memory.kv_budget_bytes(), 0);
  for (const GroupMemory& group : memory.groups) {
    GroupPlan pool{.memory = group, .units_per_sequence = peak_units(group, context)};
    pool.num_units = std::min(times(sequences, peak_units(group, length)), KvLayout::kMaxBlocks);
    pool.pool_bytes = times(pool.num_units, group.unit_bytes);
    left -= pool.pool_bytes;
    plan->groups.push_back(pool);
  }
  const auto first = std::ranges::find_if(
      plan->groups, [](const GroupPlan& g) { return g.memory.block_size_tokens > 0; });
  if (first != plan->groups.end() && sequences > 0) {
    const std::int64_t unit = first->memory.unit_bytes;
    const std::int64_t most = times(memory.cache.num_blocks, unit);
    const PoolSize size{.budget_bytes = std::min(plus(first->pool_bytes, left), most)};
    const Result<PoolPlan> planned = plan_pool(unit, size, 0);
    if (!planned) return planned.status();
    first->num_units = planned->num_blocks;
    first->pool_bytes = planned->pool_bytes;
  }
  for (const GroupPlan& group : plan->groups) {
    plan->kv_cache_bytes = plus(plan->kv_cache_bytes, group.pool_bytes);
    if (group.memory.block_size_tokens > 0) {
      plan->num_blocks = plus(plan->num_blocks, group.num_units);
    }
  }
  return {};
}

void add_token_figures(const StageMemory& memory, MemoryPlan* plan) {
  std::int64_t smallest = kMostAmount;
  std::int64_t largest = 0;
  for (const GroupMemory& group : memory.groups) {
    if (group.block_size_tokens == 0) {
      plan->kv_fixed_bytes_per_sequence = plus(plan->kv_fixed_bytes_per_sequence, group.unit_bytes);
      continue;
    }
    plan->kv_bytes_per_token = plus(plan->kv_bytes_per_token, group.bytes_per_token);
    plan->index_bytes_per_token = plus(plan->index_bytes_per_token, group.index_bytes_per_token);
    smallest = std::min(smallest, group.unit_bytes);
    largest = std::max(largest, group.unit_bytes);
  }
  if (smallest == largest) plan->block_bytes = largest;
}

std::int64_t longest_context(const ModelSpec& model) noexcept {
  const std::int64_t longest = model.shape.max_position;
  return longest > 0 ? std::min(longest, kMostTokens) : kMostTokens;
}

/// Largest batch and context. One group's blocks are counted as a pool counts them.
void add_capacity(const ModelSpec& model, const StageMemory& memory, std::int64_t batch,
                  MemoryPlan* plan) {
  plan->bytes_per_sequence = peak_bytes(memory.groups, plan->context_tokens);
  plan->asked_kv_bytes = times(batch, plan->bytes_per_sequence);
  plan->max_batch = std::min(memory.sequences(plan->context_tokens), kMostBatch);
  for (const GroupPlan& group : plan->groups) {
    if (group.units_per_sequence == 0) continue;
    const std::int64_t sequences = group.num_units / group.units_per_sequence;
    if (sequences >= plan->max_batch) continue;
    plan->max_batch = sequences;
    if (group.num_units == KvLayout::kMaxBlocks) plan->batch_limited_by = PlanLimit::num_blocks;
  }
  plan->context_limited_by =
      plan->max_context == longest_context(model) ? PlanLimit::max_position : PlanLimit::kv_cache;
  if (memory.kv_budget_bytes() <= 0) {
    plan->batch_limited_by = PlanLimit::weights;
    plan->context_limited_by = PlanLimit::weights;
  } else if (model.shape.max_position > 0 && plan->context_tokens > model.shape.max_position) {
    plan->batch_limited_by = PlanLimit::max_position;
  }
  plan->fits = plan->max_batch >= batch && plan->batch_limited_by != PlanLimit::max_position;
}

/// What a sequence of the context's length holds under either retention.
Status add_retentions(const ModelSpec& model, const PlanOptions& o, MemoryPlan* plan) {
  KvMemoryOptions kv = kv_options(model, o, plan->stage);
  const struct {
    KeptTokens kept;
    std::int64_t MemoryPlan::*bytes;
  } both[] = {{KeptTokens::full, &MemoryPlan::full_bytes_at_context},
              {KeptTokens::model, &MemoryPlan::model_bytes_at_context}};
  for (const auto& [kept, bytes] : both) {
    kv.kept = kept;
    const Result<std::vector<GroupMemory>> groups = group_memory(model, kv);
    if (!groups) return groups.status();
    plan->*bytes = bytes_at(*groups, plan->context_tokens);
  }
  return {};
}

void add_totals(const PlanOptions& o, MemoryPlan* plan) {
  const std::int64_t fixed =
      plus(plus(plan->weights_bytes, plan->activation_bytes), plan->overhead_bytes);
  plan->total_bytes = plus(fixed, plan->kv_cache_bytes);
  plan->asked_total_bytes = plus(fixed, plan->asked_kv_bytes);
  plan->free_bytes = o.memory_bytes - plan->total_bytes;
}

void add_lines(const PlanOptions& o, MemoryPlan* plan) {
  auto& lines = plan->lines;
  lines.push_back({"overhead",
                   fmt::format("{} B of context + {} B of graphs + {} B of tables",
                               grouped(o.context_overhead_bytes), grouped(o.graph_bytes),
                               grouped(plan->table_bytes)),
                   plan->overhead_bytes, "B"});
  lines.push_back({"budget",
                   fmt::format("{} B x {} / 1000", grouped(o.memory_bytes), o.utilization_permille),
                   plan->budget_bytes, "B"});
  for (const GroupPlan& group : plan->groups) {
    const GroupMemory& m = group.memory;
    const bool blocks = m.block_size_tokens > 0;
    const std::string name(name_of(m.kind));
    lines.push_back({fmt::format("{}: one {}", name, blocks ? "block" : "state"), m.arithmetic,
                     m.unit_bytes, "B"});
    lines.push_back({fmt::format("{}: {} a sequence", name, blocks ? "blocks" : "states"),
                     fmt::format("at {} tokens", grouped(plan->context_tokens)),
                     group.units_per_sequence, blocks ? "blocks" : "states"});
    lines.push_back({fmt::format("{}: pool", name),
                     fmt::format("{} x {} B", grouped(group.num_units), grouped(m.unit_bytes)),
                     group.pool_bytes, "B"});
  }
  lines.push_back({"total", "weights + KV cache + activations + overhead", plan->total_bytes, "B"});
}

}  // namespace

std::string_view name_of(PlanLimit limit) noexcept {
  switch (limit) {
    case PlanLimit::weights: return "weights";
    case PlanLimit::kv_cache: return "kv_cache";
    case PlanLimit::max_position: return "max_position";
    case PlanLimit::num_blocks: return "num_blocks";
  }
  return "unknown";
}

Result<MemoryPlan> plan(const ModelSpec& model, const PlanOptions& options) {
  if (Status status = check(options); !status) return status;
  if (Status status = validate(model); !status) return status;
  if (!model.weights_bytes && !model.parameters && model.parts.empty()) {
    return unsupported(Resource::none);
  }
  MemoryPlan plan;
  plan.context_tokens = options.context_tokens;
  if (plan.context_tokens == 0) {
    if (model.shape.max_position == 0) {
      return invalid_argument(Resource::sequence_length, 0, 1, kMostTokens);
    }
    plan.context_tokens = std::min(model.shape.max_position, kMostTokens);
  }
  plan.max_context = longest_context(model);
  std::optional<StageMemory> tightest;
  // Of the stages between the first and the last none has more of anything than the second.
  const std::int32_t last = options.pipeline_parallel - 1;
  for (const std::int32_t stage : std::set{0, std::min(1, last), last}) {
    Result<StageMemory> memory = memory_of_stage(model, options, plan.context_tokens, stage);
    if (!memory) return memory.status();
    // Of a shorter or longer context another stage may be the tightest.
    plan.max_context = std::min(plan.max_context,
                                longest_that_fits(model, options, *memory, longest_context(model)));
    if (tightest && !has_less_room(*memory, *tightest, plan.context_tokens)) continue;
    tightest = *std::move(memory);
    plan.stage = stage;
  }
  plan.budget_bytes = budget_of(options);
  plan.weights_bytes = tightest->weights_bytes;
  plan.weights_exact = model.parameters || (model.weights_bytes && !options.weights);
  plan.activation_bytes = tightest->activation_bytes;
  plan.table_bytes = tightest->cache.table_bytes;
  plan.overhead_bytes = plus(overhead_of(options), plan.table_bytes);
  plan.lines = std::move(tightest->lines);
  if (Status status = plan_pools(*tightest, &plan); !status) return status;
  add_token_figures(*tightest, &plan);
  add_capacity(model, *tightest, options.batch, &plan);
  if (Status status = add_retentions(model, options, &plan); !status) return status;
  add_totals(options, &plan);
  add_lines(options, &plan);
  return plan;
}

}  // namespace kvarena::capacity
