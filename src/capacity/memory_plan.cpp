#include "kvarena/capacity/memory_plan.hpp"

#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "capacity/amount.hpp"
#include "capacity/planning.hpp"
#include "capacity/share.hpp"
#include "kvarena/allocator/arena.hpp"

#include <algorithm>
#include <limits>
#include <new>

namespace kvarena::capacity {
namespace {

Status check(const PlanOptions& o) noexcept {
  if (Status s = check_each({
          {Option::memory_bytes, o.memory_bytes, 1, kMostAmount},
          {Option::utilization_permille, o.utilization_permille, 1, 1000},
          {Option::context_tokens, o.context_tokens, 0, kMostContextTokens},
          {Option::batch, o.batch, 1, kMostBatch},
          {Option::data_parallel, o.data_parallel, 1, kMostRanks},
          {Option::max_sequences, o.max_sequences, 1, kMostBatch},
          {Option::max_step_tokens, o.max_step_tokens, 1, kMostContextTokens},
          {Option::context_overhead_bytes, o.context_overhead_bytes, 0, kMostAmount},
          {Option::graph_bytes, o.graph_bytes, 0, kMostAmount},
      });
      !s)
    return s;
  if (Status s = check_enum(Option::kv_scale, o.kv_scale, ScaleKind::per_token_head); !s) return s;
  if (Status s = check_enum(Option::kept, o.kept, KeptTokens::model); !s) return s;
  return check_ranks(o.tensor_parallel, o.pipeline_parallel, 0);
}

Status check_split(const ModelSpec& model, const PlanOptions& o) noexcept {
  if (!can_split_heads(model.shape, o.tensor_parallel)) {
    return unsupported(Resource::num_q_heads, static_cast<std::uint64_t>(model.shape.num_q_heads));
  }
  if (o.pipeline_parallel <= model.shape.num_layers) return {};
  return invalid_option(Option::pipeline_parallel, o.pipeline_parallel, 1, model.shape.num_layers);
}

/// A pool of one group for as many sequences as fit, and for what they leave.
Status plan_blocks(const StageMemory& memory, std::int64_t sequences, std::int64_t length,
                   MemoryPlan* plan) {
  const GroupMemory& group = memory.groups.front();
  GroupPlan pool{.memory = group,
                 .num_units = pool_units(group, sequences, length, memory.step_tokens),
                 .units_per_sequence = peak_units(group, plan->context_tokens)};
  if (group.block_size_tokens > 0 && sequences > 0) {
    const std::int64_t most = times(memory.cache.num_blocks, group.unit_bytes);
    const PoolSize size{.budget_bytes = std::min(memory.kv_budget_bytes(), most)};
    const Result<PoolPlan> planned = plan_pool(group.unit_bytes, size, 0);
    if (!planned) return planned.status();
    pool.num_units = planned->num_blocks;
  }
  pool.pool_bytes = times(pool.num_units, group.unit_bytes);
  plan->kv_cache_bytes = pool.pool_bytes;
  if (group.block_size_tokens > 0) plan->num_blocks = pool.num_units;
  plan->groups = {pool};
  return {};
}

/// A pool of pages for all groups. What as many sequences as fit leave belongs to no group.
void plan_pages(const StageMemory& memory, std::int64_t sequences, std::int64_t length,
                MemoryPlan* plan) {
  const PageChoice& choice = *memory.pages;
  plan->page_bytes = choice.page_bytes;
  if (sequences > 0) {
    plan->num_pages = std::min({memory.kv_budget_bytes() / choice.page_bytes, memory.most_pages(),
                                memory.cache.num_blocks});
  }
  plan->kv_cache_bytes = times(plan->num_pages, choice.page_bytes);
  for (std::size_t i = 0; i < memory.groups.size(); ++i) {
    const GroupMemory& group = memory.groups[i];
    const PagedBlocks& blocks = choice.groups[i];
    GroupPlan pool{.memory = group,
                   .num_units = pool_units(group, sequences, length, memory.step_tokens),
                   .units_per_sequence = peak_units(group, plan->context_tokens),
                   .num_parts = blocks.num_parts,
                   .blocks_per_page = blocks.blocks_per_page,
                   .part_bytes = blocks.block_bytes,
                   .pages_per_sequence = pages_of(group.paged, blocks, plan->context_tokens)};
    pool.num_pages = pool_pages(group, blocks, sequences, length, memory.step_tokens);
    pool.pool_bytes = times(pool.num_pages, choice.page_bytes);
    if (group.block_size_tokens > 0) plan->num_blocks = plus(plan->num_blocks, pool.num_units);
    plan->groups.push_back(pool);
  }
}

/// A pool for as many sequences as fit, or for one as long as fits.
Status plan_pools(const StageMemory& memory, MemoryPlan* plan) {
  const std::int64_t context = plan->context_tokens;
  std::int64_t sequences = memory.sequences(context);
  std::int64_t length = context;
  if (sequences == 0) {
    length = longest_that([&](std::int64_t l) { return memory.holds(1, l); }, 0, context + 1);
    sequences = length > 0 ? 1 : 0;
  }
  if (memory.groups.empty()) return {};
  if (!memory.pages) return plan_blocks(memory, sequences, length, plan);
  plan_pages(memory, sequences, length, plan);
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

/// What was asked for, the largest batch, and what limits it.
void add_capacity(const ModelSpec& model, const StageMemory& memory, const PlanOptions& o,
                  const LargestBatch& largest, MemoryPlan* plan) {
  plan->bytes_per_sequence = memory.sequence_bytes(plan->context_tokens);
  plan->asked_kv_bytes = memory.pool_bytes(o.batch, plan->context_tokens);
  plan->step_bytes = plan->asked_kv_bytes - times(o.batch, plan->bytes_per_sequence);
  plan->max_batch = largest.sequences;
  plan->batch_limited_by = largest.limited_by;
  const bool is_too_long =
      model.shape.max_position > 0 && plan->context_tokens > model.shape.max_position;
  if (is_too_long) plan->max_batch = 0;
  if (is_too_long && largest.limited_by != PlanLimit::weights) {
    plan->batch_limited_by = PlanLimit::max_position;
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

}  // namespace

std::string_view name_of(PlanLimit limit) noexcept {
  switch (limit) {
    case PlanLimit::weights: return "weights";
    case PlanLimit::kv_cache: return "kv_cache";
    case PlanLimit::activations: return "activations";
    case PlanLimit::max_position: return "max_position";
    case PlanLimit::num_blocks: return "num_blocks";
    case PlanLimit::num_sequences: return "num_sequences";
  }
  return "unknown";
}

std::vector<std::int32_t> tensor_parallel_choices(const ModelSpec& model) {
  return ranks_that_split(model.shape);
}

Result<std::int64_t> checked_context(const ModelSpec& model, const PlanOptions& options) {
  if (Status status = check(options); !status) return status;
  if (Status status = validate(model); !status) return status;
  if (Status status = check_split(model, options); !status) return status;
  if (options.context_tokens > 0) return options.context_tokens;
  if (model.shape.max_position > 0) return std::min(model.shape.max_position, kMostContextTokens);
  return invalid_option(Option::context_tokens, 0, 1, kMostContextTokens);
}

Result<MemoryPlan> plan(const ModelSpec& model, const PlanOptions& options) try {
  const Result<std::int64_t> context = checked_context(model, options);
  if (!context) return context.status();
  MemoryPlan plan;
  plan.context_tokens = *context;
  LongestContext longest{.tokens = longest_context(model)};
  std::optional<StageMemory> tightest;
  for (const std::int32_t stage : stages_to_plan(model, options)) {
    Result<StageMemory> memory = memory_of_stage(model, options, plan.context_tokens, stage);
    if (!memory) return memory.status();
    // Of a shorter or longer context another stage may be the tightest.
    const LongestContext here =
        longest_that_fits(model, options, stage, *memory, longest_context(model));
    if (!tightest || here.tokens < longest.tokens) longest = here;
    if (tightest && !has_less_room(*memory, *tightest, plan.context_tokens)) continue;
    tightest = *std::move(memory);
    plan.stage = stage;
  }
  plan.budget_bytes = budget_of(options).value();
  plan.weights_known = has_weights(model);
  plan.weights_bytes = tightest->weights_bytes;
  const bool is_counted = model.parameters && !model.weights_quantised;
  plan.weights_exact = has_published_weights(model, options) && (model.weights_bytes || is_counted);
  plan.activation_bytes = tightest->activation_bytes;
  plan.table_bytes = tightest->cache.table_bytes;
  plan.overhead_bytes = plus(overhead_of(options), plan.table_bytes);
  plan.max_context = longest.tokens;
  plan.context_limited_by = longest.limited_by;
  if (Status status = plan_pools(*tightest, &plan); !status) return status;
  add_token_figures(*tightest, &plan);
  const LargestBatch largest = batch_that_fits(model, options, plan.context_tokens);
  add_capacity(model, *tightest, options, largest, &plan);
  if (Status status = add_retentions(model, options, &plan); !status) return status;
  plan.total_bytes = total_of(plan, plan.kv_cache_bytes).value();
  plan.asked_total_bytes = total_of(plan, plan.asked_kv_bytes).value();
  plan.free_bytes = options.memory_bytes - plan.total_bytes;
  plan.lines = lines_of(model, options, {*tightest, longest, largest}, plan);
  return plan;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace kvarena::capacity
