#include "capacity/planning.hpp"

#include "base/grouped.hpp"
#include "capacity/amount.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena::capacity {
namespace {

using Lines = std::vector<PlanLine>;

/// A block table begins a cache line of so many entries.
constexpr std::int64_t kRowEntries = 32;
/// Times the pool's blocks: entries of a step's tables where KvCacheOptions::max_batch_blocks is 0.
constexpr std::int64_t kBatchTables = 4;

/// What the tables' entries take (memory-layout.md): each sequence at its longest, or a shared pool
/// where that takes less.
Formula table_entries(std::int64_t sequences, std::int64_t longest, std::int64_t num_blocks) {
  const Formula rows(sequences, "sequences");
  const Formula fixed = rows * Formula(longest, "blocks") * Formula(4, "B");
  const Formula shared =
      Formula(2) *
      (Formula(2) * kBatchTables * Formula(num_blocks, "blocks") + Formula(kRowEntries) * rows) *
      Formula(4, "B");
  return fixed.value() <= shared.value() ? fixed : shared;
}

void add_tables(const ModelSpec& model, const PlanOptions& o, const StageMemory& memory,
                const MemoryPlan& plan, Lines& lines) {
  const FittedCache& cache = memory.cache;
  if (cache.table_bytes == 0) return;
  const auto options = options_for(model, o, memory.groups, plan.stage, plan.context_tokens);
  const bool is_uniform = options && options->options.groups.empty();
  if (cache.workspace_bytes > 0 && !is_uniform) {
    lines.push_back(line_of("attention workspaces", Formula(cache.workspace_bytes, "B")));
  } else if (cache.workspace_bytes > 0) {
    lines.push_back(line_of("attention workspaces",
                            workspace_formula(options->options, *o.target, cache.workspace_bytes)));
  }
  const std::int64_t tables = cache.table_bytes - cache.workspace_bytes;
  if (tables == 0) return;
  if (!is_uniform) {
    lines.push_back(line_of("block tables", Formula(tables, "B of the tables of all groups")));
    return;
  }
  const std::int64_t blocks =
      std::min(ceil_div(plan.context_tokens, o.block_size_tokens), cache.num_blocks);
  const std::int64_t longest = times(ceil_div(blocks, kRowEntries), kRowEntries);
  const Formula known = table_entries(max_sequences_of(o), longest, cache.num_blocks) +
                        Formula(o.max_step_tokens, "tokens") * Formula(8, "B");
  lines.push_back(
      line_of("block tables", known + Formula(tables - known.value(), "B of the rows")));
}

void add_overhead(const PlanOptions& o, const MemoryPlan& plan, Lines& lines) {
  lines.push_back(line_of("overhead", Formula(o.context_overhead_bytes, "B of context") +
                                          Formula(o.graph_bytes, "B of graphs") +
                                          Formula(plan.table_bytes, "B of tables")));
  lines.push_back(line_of("budget", budget_of(o)));
  const Formula left = Formula(plan.budget_bytes) - plan.weights_bytes - plan.activation_bytes -
                       Formula(plan.overhead_bytes, "B");
  lines.push_back(
      line_of(plan.weights_known ? "left for K and V" : "left for weights, K and V", left));
}

/// Blocks or states of a sequence.
Formula units_of(const GroupMemory& group, std::int64_t length_tokens) {
  const std::int64_t block = group.block_size_tokens;
  if (block == 0) return {1, "each"};
  const bool is_chunked = group.kind == CacheKind::chunked;
  if (group.kind != CacheKind::window && !is_chunked) return rounded_up(length_tokens, block);
  const bool is_whole = (is_chunked && group.limit_tokens % block == 0) || block == 1;
  const Formula limit = group.limit_tokens;
  return rounded_up(least({length_tokens, is_whole ? limit : limit + (block - 1)}), block);
}

/// Pages of a sequence: of each part, blocks that fill one page after the other.
Formula pages_of_sequence(const GroupPlan& group) {
  const Formula per_page = group.blocks_per_page;
  const Formula parts(group.num_parts, "parts");
  const PagedKind kind = group.memory.paged.kind;
  if (kind == PagedKind::state) return rounded_up(parts, per_page);
  const std::int64_t blocks = peak_blocks(group.memory.paged, group.memory.paged.limit_tokens);
  const Formula units(kind == PagedKind::cross ? blocks : group.units_per_sequence, "blocks");
  const bool is_windowed = kind == PagedKind::window || kind == PagedKind::chunk;
  if (group.units_per_sequence == 0) return units;
  const Formula pages = is_windowed && group.blocks_per_page > 1
                            ? rounded_down(units + (group.blocks_per_page - 2), per_page) + 1
                            : rounded_up(units, per_page);
  return group.num_parts > 1 ? parts * pages : pages;
}

/// The page of several groups: the blocks of one of them fill it.
void add_page(const MemoryPlan& plan, Lines& lines) {
  for (const GroupPlan& group : plan.groups) {
    if (plan.page_bytes % group.part_bytes != 0) continue;
    const std::string of = fmt::format("of {}", name_of(group.memory.kind));
    const Formula count = Formula(group.blocks_per_page).of(of);
    lines.push_back(line_of("one page", count * Formula(group.part_bytes, "B")));
    break;
  }
  lines.push_back(
      line_of("pool", Formula(plan.num_pages, "pages") * Formula(plan.page_bytes, "B")));
}

/// A group's share of the pages.
void add_pages(const GroupPlan& group, const std::string& name, std::int64_t page_bytes,
               Lines& lines) {
  if (group.num_parts > 1) {
    const Formula part =
        rounded_up(Formula(group.memory.paged.layer_bytes, "B") *
                       Formula(group.memory.num_layers / group.num_parts, "layers"),
                   PageChoice::kBlockAlignment) *
        PageChoice::kBlockAlignment;
    lines.push_back(line_of(fmt::format("{}: one of {} parts", name, group.num_parts), part));
  }
  lines.push_back(
      line_of(fmt::format("{}: pages a sequence", name), pages_of_sequence(group), "pages"));
  lines.push_back(
      line_of(fmt::format("{}: pages", name), Formula(group.num_pages) * Formula(page_bytes, "B")));
}

void add_groups(const MemoryPlan& plan, Lines& lines) {
  std::optional<Formula> sequence;
  if (plan.page_bytes > 0) add_page(plan, lines);
  for (const GroupPlan& group : plan.groups) {
    const GroupMemory& m = group.memory;
    const char* unit = m.block_size_tokens > 0 ? "block" : "state";
    const std::string units = fmt::format("{}s", unit);
    const std::string name(name_of(m.kind));
    lines.push_back({fmt::format("{}: one {}", name, unit), m.arithmetic, m.unit_bytes, "B"});
    lines.push_back(line_of(fmt::format("{}: {} a sequence", name, units),
                            units_of(m, plan.context_tokens), units));
    const Formula bytes(m.unit_bytes, "B");
    Formula term = Formula(group.units_per_sequence) * bytes;
    if (plan.page_bytes > 0) {
      add_pages(group, name, plan.page_bytes, lines);
      term = Formula(group.pages_per_sequence, "pages");
    } else {
      lines.push_back(line_of(fmt::format("{}: pool", name), Formula(group.num_units) * bytes));
    }
    sequence = sequence ? *sequence + term : term;
  }
  if (!sequence) return;
  if (plan.page_bytes > 0) sequence = *sequence * Formula(plan.page_bytes, "B");
  lines.push_back(line_of("K and V of a sequence", *sequence));
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
    const bool has_own_logits = largest.sequences > max_sequences_of(o);
    Formula left(largest.kv_budget_bytes,
                 has_own_logits ? "beside their own logits and tables" : "");
    if (step > 0) left = left - Formula(step, "of a step's tokens");
    return rounded_down(left, largest.bytes_each).text();
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
  const Formula memory = o.memory_bytes;
  lines.push_back(line_of("total", total_of(plan, plan.kv_cache_bytes)));
  lines.push_back(line_of("free", memory - Formula(plan.total_bytes, "B")));
  Formula asked = Formula(o.batch) * Formula(plan.bytes_per_sequence, "B");
  if (plan.step_bytes > 0) asked = asked + Formula(plan.step_bytes, "B of a step's tokens");
  lines.push_back(line_of("KV cache asked for", asked));
  lines.push_back(line_of("total asked for", total_of(plan, plan.asked_kv_bytes)));
  lines.push_back(
      line_of("free of what is asked for", memory - Formula(plan.asked_total_bytes, "B")));
}

}  // namespace

Formula budget_of(const PlanOptions& o) {
  return rounded_down(Formula(o.memory_bytes, "B") * o.utilization_permille, 1000);
}

Formula total_of(const MemoryPlan& plan, std::int64_t kv_bytes) {
  const Formula rest = Formula(kv_bytes, "KV cache") +
                       Formula(plan.activation_bytes, "activations") +
                       Formula(plan.overhead_bytes, "overhead");
  return plan.weights_known ? Formula(plan.weights_bytes, "weights") + rest : rest;
}

Lines lines_of(const ModelSpec& model, const PlanOptions& options, const PlanSources& sources,
               const MemoryPlan& plan) {
  Lines lines = weights_of_rank(model, options, plan.stage).lines;
  Lines activations = activations_of_rank(model, options).lines;
  std::ranges::move(activations, std::back_inserter(lines));
  add_tables(model, options, sources.memory, plan, lines);
  add_overhead(options, plan, lines);
  add_groups(plan, lines);
  lines.push_back(
      {"largest batch", batch_arithmetic(options, sources, plan), plan.max_batch, "sequences"});
  lines.push_back(
      {"longest context", context_arithmetic(options, sources), plan.max_context, "tokens"});
  add_totals(options, plan, lines);
  return lines;
}

}  // namespace kvarena::capacity
