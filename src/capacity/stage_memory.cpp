#include "capacity/stage_memory.hpp"

#include "capacity/amount.hpp"
#include "capacity/rank_memory.hpp"

#include <algorithm>

namespace kvarena::capacity {
namespace {

bool is_quantised(const StorageFormat& format) noexcept {
  return format.name == "int8" || format.name.starts_with("fp8");
}

}  // namespace

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

std::int64_t StageMemory::step_bytes(std::int64_t length_tokens) const noexcept {
  std::int64_t sum = 0;
  for (const GroupMemory& group : groups) {
    sum = plus(sum, times(step_units(group, length_tokens, step_tokens), group.unit_bytes));
  }
  return sum;
}

std::int64_t StageMemory::sequences_beside(const FittedCache& its,
                                           std::int64_t length_tokens) const noexcept {
  if (cache_budget_bytes <= its.table_bytes || its.num_blocks == 0) return 0;
  const std::int64_t left = cache_budget_bytes - its.table_bytes;
  const std::int64_t step = step_bytes(length_tokens);
  if (left <= step) return 0;
  const std::int64_t each = peak_bytes(groups, length_tokens);
  std::int64_t most = each == 0 ? kMostBatch : (left - step) / each;
  for (const GroupMemory& group : groups) {
    const std::int64_t units = peak_units(group, length_tokens);
    if (group.block_size_tokens > 0 && units > 0) most = std::min(most, its.num_blocks / units);
  }
  return most;
}

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
  memory.step_tokens = o.max_step_tokens;
  memory.groups = *std::move(groups);
  memory.weights_bytes = weights_of_rank(model, o, stage, &memory.lines);
  memory.activation_bytes = activations_of_rank(model, o, &memory.lines);
  const std::int64_t fixed =
      plus(plus(memory.weights_bytes, memory.activation_bytes), overhead_of(o));
  memory.cache_budget_bytes = fixed == kMostAmount ? -1 : budget_of(o) - fixed;
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

std::set<std::int32_t> stages_to_plan(const PlanOptions& options) {
  const std::int32_t last = options.pipeline_parallel - 1;
  return {0, std::min(1, last), last};
}

std::int64_t batch_that_fits(const ModelSpec& model, const PlanOptions& options,
                             std::int64_t length_tokens) {
  const auto most_with = [&](std::int64_t batch) {
    PlanOptions changed = options;
    changed.batch = batch;
    std::int64_t most = kMostBatch;
    for (const std::int32_t stage : stages_to_plan(options)) {
      const Result<StageMemory> memory = memory_of_stage(model, changed, length_tokens, stage);
      most = std::min(most, memory ? memory->sequences(length_tokens) : 0);
    }
    return most;
  };
  const std::int64_t most = most_with(1);
  if (most <= options.max_sequences) return most;
  return longest_that([&](std::int64_t batch) { return most_with(batch) >= batch; },
                      options.max_sequences, most + 1);
}

}  // namespace kvarena::capacity
