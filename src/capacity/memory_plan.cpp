#include "kvarena/capacity/memory_plan.hpp"

#include "base/grouped.hpp"
#include "capacity/amount.hpp"
#include "capacity/share.hpp"
#include "capacity/stage_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace kvarena::capacity {
namespace {

constexpr std::int64_t kMostTokens = std::numeric_limits<std::int32_t>::max();

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

Status check_stages(const ModelSpec& model, const PlanOptions& o) noexcept {
  if (o.pipeline_parallel <= model.shape.num_layers) return {};
  return invalid_argument(Resource::num_ranks, o.pipeline_parallel, 1, model.shape.num_layers);
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
    const std::int64_t step = sequences > 0 ? step_units(group, length, memory.step_tokens) : 0;
    pool.num_units =
        std::min(plus(times(sequences, peak_units(group, length)), step), KvLayout::kMaxBlocks);
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

/// Largest batch and context, and what limits them.
void add_capacity(const ModelSpec& model, const StageMemory& memory, const PlanOptions& o,
                  MemoryPlan* plan) {
  plan->bytes_per_sequence = peak_bytes(memory.groups, plan->context_tokens);
  plan->step_bytes = memory.step_bytes(plan->context_tokens);
  plan->asked_kv_bytes = plus(times(o.batch, plan->bytes_per_sequence), plan->step_bytes);
  plan->max_batch = batch_that_fits(model, o, plan->context_tokens);
  plan->context_limited_by =
      plan->max_context == longest_context(model) ? PlanLimit::max_position : PlanLimit::kv_cache;
  const bool is_too_long =
      model.shape.max_position > 0 && plan->context_tokens > model.shape.max_position;
  if (memory.kv_budget_bytes() <= 0) {
    plan->batch_limited_by = PlanLimit::weights;
    plan->context_limited_by = PlanLimit::weights;
  } else if (is_too_long) {
    plan->batch_limited_by = PlanLimit::max_position;
    plan->max_batch = 0;
  } else if (memory.kv_budget_bytes() - plan->kv_cache_bytes >= plan->bytes_per_sequence) {
    plan->batch_limited_by = PlanLimit::num_blocks;  // memory is left for one more
  }
  plan->fits = plan->max_batch >= o.batch;
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
  const std::int64_t fixed =
      plus(plus(plan->weights_bytes, plan->activation_bytes), plan->overhead_bytes);
  lines.push_back({"left for K and V",
                   fmt::format("{} B - {} B of weights, activations and overhead",
                               grouped(plan->budget_bytes), grouped(fixed)),
                   std::max<std::int64_t>(plan->budget_bytes - fixed, 0), "B"});
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
  lines.push_back({"largest batch",
                   fmt::format("sequences of at most {} B each beside {} B of a step's tokens",
                               grouped(plan->bytes_per_sequence), grouped(plan->step_bytes)),
                   plan->max_batch, "sequences"});
  lines.push_back({"total",
                   fmt::format("{} weights + {} KV cache + {} activations + {} overhead",
                               grouped(plan->weights_bytes), grouped(plan->kv_cache_bytes),
                               grouped(plan->activation_bytes), grouped(plan->overhead_bytes)),
                   plan->total_bytes, "B"});
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
  if (Status status = check_stages(model, options); !status) return status;
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
  for (const std::int32_t stage : stages_to_plan(options)) {
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
  const bool as_published = !options.weights || options.weights->name == model.weights_format;
  plan.weights_exact = as_published && (model.parameters || model.weights_bytes);
  plan.activation_bytes = tightest->activation_bytes;
  plan.table_bytes = tightest->cache.table_bytes;
  plan.overhead_bytes = plus(overhead_of(options), plan.table_bytes);
  plan.lines = std::move(tightest->lines);
  if (Status status = plan_pools(*tightest, &plan); !status) return status;
  add_token_figures(*tightest, &plan);
  add_capacity(model, *tightest, options, &plan);
  if (Status status = add_retentions(model, options, &plan); !status) return status;
  add_totals(options, &plan);
  add_lines(options, &plan);
  return plan;
}

}  // namespace kvarena::capacity
