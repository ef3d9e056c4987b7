#include "capacity/plan_lines.hpp"

#include "base/grouped.hpp"
#include "capacity/amount.hpp"
#include "capacity/rank_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena::capacity {
namespace {

using Lines = std::vector<PlanLine>;

bool is_limited(const GroupMemory& group) noexcept {
  return group.kind == CacheKind::window || group.kind == CacheKind::chunked;
}

/// A block table begins a cache line of so many entries.
constexpr std::int64_t kRowEntries = 32;
/// Times the pool's blocks: entries of a step's tables where KvCacheOptions::max_batch_blocks is 0.
constexpr std::int64_t kBatchTables = 4;

/// What the tables' entries take (memory-layout.md): each sequence at its longest, or a shared pool
/// where that takes less.
struct TableEntries {
  std::int64_t bytes;
  std::string arithmetic;
};
TableEntries table_entries(std::int64_t sequences, std::int64_t longest, std::int64_t num_blocks) {
  const std::int64_t fixed = times(sequences, longest, 4);
  const std::int64_t shared =
      times(plus(times(4 * kBatchTables, num_blocks), times(2 * kRowEntries, sequences)), 4);
  if (fixed <= shared) {
    return {fixed,
            fmt::format("{} sequences x {} blocks x 4 B", grouped(sequences), grouped(longest))};
  }
  return {shared, fmt::format("2 x (2 x {} x {} blocks + {} x {} sequences) x 4 B", kBatchTables,
                              grouped(num_blocks), kRowEntries, grouped(sequences))};
}

void add_tables(const ModelSpec& model, const PlanOptions& o, const StageMemory& memory,
                const MemoryPlan& plan, Lines& lines) {
  const FittedCache& cache = memory.cache;
  if (cache.table_bytes == 0) return;
  const std::int64_t sequences = max_sequences_of(o);
  const auto options = options_for(model, o, memory.groups, plan.context_tokens);
  if (options && cache.workspace_bytes > 0) {
    lines.push_back({"attention workspaces",
                     workspace_arithmetic(*options, *o.target, cache.workspace_bytes),
                     cache.workspace_bytes, "B"});
  }
  const std::int64_t tables = cache.table_bytes - cache.workspace_bytes;
  if (tables == 0) return;
  const std::int64_t blocks =
      std::min(ceil_div(plan.context_tokens, o.block_size_tokens), cache.num_blocks);
  const std::int64_t longest = times(ceil_div(blocks, kRowEntries), kRowEntries);
  const TableEntries entries = table_entries(sequences, longest, cache.num_blocks);
  const std::int64_t slots = times(o.max_step_tokens, 8);
  lines.push_back({"block tables",
                   fmt::format("{} + {} tokens x 8 B + {} B of the rows", entries.arithmetic,
                               grouped(o.max_step_tokens), grouped(tables - entries.bytes - slots)),
                   tables, "B"});
}

void add_overhead(const PlanOptions& o, const MemoryPlan& plan, Lines& lines) {
  lines.push_back({"overhead",
                   fmt::format("{} B of context + {} B of graphs + {} B of tables + 0 B of the "
                               "allocator",
                               grouped(o.context_overhead_bytes), grouped(o.graph_bytes),
                               grouped(plan.table_bytes)),
                   plan.overhead_bytes, "B"});
  lines.push_back(
      {"budget",
       fmt::format("floor({} B x {} / 1000)", grouped(o.memory_bytes), o.utilization_permille),
       plan.budget_bytes, "B"});
  lines.push_back(
      {"left for K and V",
       fmt::format("{} - {} - {} - {} B", grouped(plan.budget_bytes), grouped(plan.weights_bytes),
                   grouped(plan.activation_bytes), grouped(plan.overhead_bytes)),
       plan.budget_bytes -
           (plus(plus(plan.weights_bytes, plan.activation_bytes), plan.overhead_bytes)),
       "B"});
}

/// Units of a sequence, with their numbers in.
std::string units_arithmetic(const GroupMemory& group, std::int64_t length_tokens) {
  const std::int64_t block = group.block_size_tokens;
  if (block == 0) return "1 each";
  std::string tokens = grouped(length_tokens);
  if (is_limited(group)) {
    const bool is_whole = group.kind == CacheKind::chunked && group.limit_tokens % block == 0;
    const std::string begun = is_whole || block == 1 ? "" : fmt::format(" + {}", block - 1);
    tokens = fmt::format("min({}, {}{})", tokens, grouped(group.limit_tokens), begun);
  }
  return fmt::format("ceil({} / {})", tokens, block);
}

void add_groups(const MemoryPlan& plan, Lines& lines) {
  std::string terms;
  for (const GroupPlan& group : plan.groups) {
    const GroupMemory& m = group.memory;
    const bool blocks = m.block_size_tokens > 0;
    const std::string name(name_of(m.kind));
    lines.push_back({fmt::format("{}: one {}", name, blocks ? "block" : "state"), m.arithmetic,
                     m.unit_bytes, "B"});
    lines.push_back({fmt::format("{}: {} a sequence", name, blocks ? "blocks" : "states"),
                     units_arithmetic(m, plan.context_tokens), group.units_per_sequence,
                     blocks ? "blocks" : "states"});
    lines.push_back({fmt::format("{}: pool", name),
                     fmt::format("{} x {} B", grouped(group.num_units), grouped(m.unit_bytes)),
                     group.pool_bytes, "B"});
    terms += fmt::format("{}{} x {} B", terms.empty() ? "" : " + ",
                         grouped(group.units_per_sequence), grouped(m.unit_bytes));
  }
  lines.push_back({"K and V of a sequence", terms, plan.bytes_per_sequence, "B"});
}

/// The largest batch, by what limits it.
std::string batch_arithmetic(const PlanOptions& o, const PlanSources& from,
                             const MemoryPlan& plan) {
  const LargestBatch& largest = from.largest;
  switch (plan.batch_limited_by) {
    case PlanLimit::weights: return "nothing is left for K and V";
    case PlanLimit::max_position:
      return fmt::format("{} tokens are more than the model takes", grouped(plan.context_tokens));
    case PlanLimit::activations:
      return fmt::format("{} beside the activations and tables of one, {} beside their own",
                         grouped(largest.beside_one), grouped(largest.sequences));
    case PlanLimit::num_blocks:
      return fmt::format("within {} blocks, the most of a pool",
                         grouped(from.memory.cache.most_blocks));
    case PlanLimit::num_sequences: return fmt::format("at most {}", grouped(kMostBatch));
    case PlanLimit::kv_cache: break;
  }
  const std::int64_t step = largest.pool_bytes - times(largest.sequences, largest.bytes_each);
  if (largest.bytes_each > 0 &&
      (largest.kv_budget_bytes - step) / largest.bytes_each == largest.sequences) {
    std::string left = grouped(largest.kv_budget_bytes);
    if (step > 0) left = fmt::format("({} - {} of a step's tokens)", left, grouped(step));
    const bool has_own_logits = largest.sequences > max_sequences_of(o);
    return fmt::format("floor({}{} / {})", left,
                       has_own_logits ? " beside their own logits and tables" : "",
                       grouped(largest.bytes_each));
  }
  return fmt::format("{} of {} B", grouped(largest.pool_bytes), grouped(largest.kv_budget_bytes));
}

/// The longest context, by what limits it.
std::string context_arithmetic(const PlanOptions& o, const PlanSources& from) {
  const LongestContext& longest = from.longest;
  switch (longest.limited_by) {
    case PlanLimit::max_position: return "the model's longest";
    case PlanLimit::weights:
    case PlanLimit::activations: return "nothing is left for K and V";
    case PlanLimit::num_blocks:
    case PlanLimit::num_sequences:
      return fmt::format("{} sequences within {} blocks, the most of a pool", grouped(o.batch),
                         grouped(from.memory.cache.most_blocks));
    case PlanLimit::kv_cache: break;
  }
  return fmt::format("{} sequences of so many take {} of {} B", grouped(o.batch),
                     grouped(longest.pool_bytes), grouped(longest.kv_budget_bytes));
}

void add_totals(const PlanOptions& o, const MemoryPlan& plan, Lines& lines) {
  const auto total = [&](std::int64_t kv_bytes) {
    return fmt::format("{} weights + {} KV cache + {} activations + {} overhead",
                       grouped(plan.weights_bytes), grouped(kv_bytes),
                       grouped(plan.activation_bytes), grouped(plan.overhead_bytes));
  };
  const auto rest = [&](std::int64_t total_bytes) {
    return fmt::format("{} - {} B", grouped(o.memory_bytes), grouped(total_bytes));
  };
  lines.push_back({"total", total(plan.kv_cache_bytes), plan.total_bytes, "B"});
  lines.push_back({"free", rest(plan.total_bytes), plan.free_bytes, "B"});
  std::string asked = fmt::format("{} x {} B", grouped(o.batch), grouped(plan.bytes_per_sequence));
  if (plan.step_bytes > 0) {
    asked += fmt::format(" + {} B of a step's tokens", grouped(plan.step_bytes));
  }
  lines.push_back({"KV cache asked for", std::move(asked), plan.asked_kv_bytes, "B"});
  lines.push_back({"total asked for", total(plan.asked_kv_bytes), plan.asked_total_bytes, "B"});
  lines.push_back({"free of what is asked for", rest(plan.asked_total_bytes),
                   o.memory_bytes - plan.asked_total_bytes, "B"});
}

}  // namespace

void add_lines(const ModelSpec& model, const PlanOptions& options, const PlanSources& sources,
               MemoryPlan* plan) {
  Lines lines;
  weights_of_rank(model, options, plan->stage, &lines);
  activations_of_rank(model, options, &lines);
  add_tables(model, options, sources.memory, *plan, lines);
  add_overhead(options, *plan, lines);
  add_groups(*plan, lines);
  lines.push_back(
      {"largest batch", batch_arithmetic(options, sources, *plan), plan->max_batch, "sequences"});
  lines.push_back(
      {"longest context", context_arithmetic(options, sources), plan->max_context, "tokens"});
  add_totals(options, *plan, lines);
  plan->lines = std::move(lines);
}

}  // namespace kvarena::capacity
