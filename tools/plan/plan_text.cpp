#include "tools/plan/plan_case.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "tools/option_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace kvarena::tools {
namespace {

using capacity::GroupPlan;
using capacity::MemoryPlan;

constexpr double kMiB = 1024.0 * 1024.0;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// Bytes; sums and products that 63 bits do not hold are more than they say.
std::string amount(std::int64_t bytes) {
  if (bytes == kMost) return "more than 2^63 - 1";
  return bytes == -kMost ? "none" : grouped(bytes);
}

/// What a sum leaves of the budget.
std::int64_t left_of(std::int64_t budget, std::int64_t total) {
  return total == kMost ? -kMost : budget - total;
}

/// A figure in bytes and MiB.
std::string cells(std::int64_t bytes) {
  const bool is_known = bytes != kMost && bytes != -kMost;
  return fmt::format(
      " {:>18} {:>12}", amount(bytes),
      is_known ? fmt::format("{:.1f}", static_cast<double>(bytes) / kMiB) : std::string("-"));
}

/// What was asked for, without weights: what is left is left for them.
std::string unknown_breakdown_of(const PlannedCase& p) {
  const MemoryPlan& plan = p.plan;
  const auto row = [](std::string_view name, std::int64_t bytes) {
    return fmt::format("  {:<18}{}\n", name, cells(bytes));
  };
  return fmt::format(
             "  {:<18} {:>31}\n  {:<18} {:>18} {:>12}\n", "",
             fmt::format("{} x {} tokens", grouped(p.options.batch), grouped(plan.context_tokens)),
             "", "bytes", "MiB") +
         fmt::format("  {:<18} {:>18}\n", "weights", "unknown") +
         row("KV cache", plan.asked_kv_bytes) + row("activations", plan.activation_bytes) +
         row("overhead", plan.overhead_bytes) + row("without weights", plan.asked_total_bytes) +
         row("left for weights", left_of(plan.budget_bytes, plan.asked_total_bytes));
}

std::string breakdown_of(const PlannedCase& p) {
  const MemoryPlan& plan = p.plan;
  if (!plan.weights_known) return unknown_breakdown_of(p);
  const auto row = [](std::string_view name, std::int64_t pool, std::int64_t asked) {
    return fmt::format("  {:<14}{}{}\n", name, cells(asked), cells(pool));
  };
  const auto subtotal = [&](std::int64_t total) {
    return total == kMost ? kMost : total - plan.overhead_bytes;
  };
  std::string text = fmt::format(
      "  {:<14} {:>31} {:>31}\n  {:<14} {:>18} {:>12} {:>18} {:>12}\n", "",
      fmt::format("{} x {} tokens", grouped(p.options.batch), grouped(plan.context_tokens)),
      "pool of all that fits", "", "bytes", "MiB", "bytes", "MiB");
  text += row("weights", plan.weights_bytes, plan.weights_bytes);
  text += row("KV cache", plan.kv_cache_bytes, plan.asked_kv_bytes);
  text += row("activations", plan.activation_bytes, plan.activation_bytes);
  text += row("subtotal", subtotal(plan.total_bytes), subtotal(plan.asked_total_bytes));
  text += row("overhead", plan.overhead_bytes, plan.overhead_bytes);
  text += row("total", plan.total_bytes, plan.asked_total_bytes);
  text += row("free of budget", left_of(plan.budget_bytes, plan.total_bytes),
              left_of(plan.budget_bytes, plan.asked_total_bytes));
  const std::int64_t unused = p.memory.bytes - plan.budget_bytes;
  text += row("left unused", unused, unused);
  return text;
}

std::string groups_of(const PlannedCase& p) {
  std::string text = "K and V of a sequence\n";
  for (const GroupPlan& group : p.plan.groups) {
    text += fmt::format("  {:<18} {:>3} layers  {}\n", capacity::name_of(group.memory.kind),
                        group.memory.num_layers, formula_of(group.memory));
  }
  text += fmt::format("  at {} tokens {} B", grouped(p.plan.context_tokens),
                      amount(p.plan.bytes_per_sequence));
  if (p.plan.step_bytes > 0) {
    text += fmt::format(" at most{} + {} B for a step's tokens",
                        p.options.batch > 1 ? fmt::format(" x {}", grouped(p.options.batch)) : "",
                        amount(p.plan.step_bytes));
  }
  if (p.plan.full_bytes_at_context != p.plan.model_bytes_at_context) {
    text +=
        fmt::format("; all tokens kept {} B, those in the windows {} B (--retention)",
                    amount(p.plan.full_bytes_at_context), amount(p.plan.model_bytes_at_context));
  }
  text += '\n';
  return text;
}

std::string answer_of(const PlannedCase& p) {
  const MemoryPlan& plan = p.plan;
  if (!plan.weights_known) {
    return fmt::format("{}weights unknown: {}\n",
                       plan.fits ? "" : "DOES NOT FIT, even without weights; ",
                       weights_advice_of(p));
  }
  const bool is_absurd = plan.asked_total_bytes == kMost;
  const std::int64_t missing = is_absurd ? kMost : plan.asked_total_bytes - plan.budget_bytes;
  std::string text = fmt::format(
      "{}: {} x {} tokens{}\n  {:<12} {} sequences of {} tokens (limited by {})\n"
      "  {:<12} {} tokens for each of {} (limited by {})\n",
      plan.fits ? "fits" : "DOES NOT FIT", grouped(p.options.batch), grouped(plan.context_tokens),
      !plan.fits && missing > 0 ? fmt::format(", short of {} B", amount(missing)) : "",
      "largest batch", grouped(plan.max_batch), grouped(plan.context_tokens),
      capacity::name_of(plan.batch_limited_by), "longest", grouped(plan.max_context),
      grouped(p.options.batch), capacity::name_of(plan.context_limited_by));
  if (p.options.data_parallel > 1) {
    text += fmt::format("  {:<12} {} sequences in {} replicas\n", "in all",
                        grouped(plan.max_batch * p.options.data_parallel), p.options.data_parallel);
  }
  if (plan.max_batch > max_sequences_of(p.options)) {
    text += fmt::format(
        "  tables, logits and settings here are for {} at a time; for more: --batch {}\n",
        grouped(max_sequences_of(p.options)), plan.max_batch);
  }
  for (const capacity::PlanChange& change : p.changes) {
    text += fmt::format("  would fit with {}\n", option_of(change));
  }
  if (!plan.fits && p.changes.empty()) {
    text += fmt::format("  no single change makes it fit; it takes {} B of {} B\n",
                        amount(plan.asked_total_bytes), grouped(plan.budget_bytes));
  }
  return text;
}

std::string trace_of(const PlannedTrace& trace, bool weights_known) {
  if (!weights_known) {
    return fmt::format("trace of {} requests: how many fit is not known without weights\n",
                       grouped(trace.requests));
  }
  std::string text = fmt::format("trace of {} requests\n", grouped(trace.requests));
  for (const PlannedTrace::Row& at : trace.rows) {
    text +=
        fmt::format("  percentile {:>4g}: {} tokens, {} at a time (limited by {})\n", at.percentile,
                    grouped(at.tokens), grouped(at.batch), capacity::name_of(at.limited_by));
    if (!trace.hit_rate || at.batch == 0) continue;
    text += fmt::format(
        "                   {} of them cached: up to {} at a time where they are shared\n",
        grouped(at.cached_tokens), grouped(at.batch_sharing));
  }
  if (!trace.hit_rate) return text;
  text += fmt::format(
      "  hit rate {:g} of prompt tokens: {} of {} need not be computed\n"
      "  each request takes all of its blocks where nobody else has them, and only the rest where\n"
      "  others hold those that are cached\n",
      *trace.hit_rate, grouped(trace.cached_tokens()), grouped(trace.prompt_tokens));
  return text;
}

/// The pool of several groups, or of one that a KvCache cannot hold.
std::string pools_text_of(const PlannedCase& p) {
  std::string text = "pools\n";
  if (p.plan.page_bytes > 0) {
    text = fmt::format("a pool of {} pages of {} B, which any group can take\n",
                       grouped(p.plan.num_pages), grouped(p.plan.page_bytes));
  }
  for (const GroupPlan& group : p.plan.groups) {
    text += fmt::format(
        "  {:<18} {} {} of {} B\n", capacity::name_of(group.memory.kind), grouped(group.num_units),
        group.memory.block_size_tokens > 0 ? "blocks" : "states", grouped(group.memory.unit_bytes));
    if (group.blocks_per_page == 0) continue;
    text += fmt::format("  {:<18} {} pages a sequence at most, {}{} a page\n", "",
                        grouped(group.pages_per_sequence), group.blocks_per_page,
                        group.num_parts > 1 ? fmt::format(" of {} parts", group.num_parts) : "");
  }
  return text;
}

std::string settings_text_of(const PlannedCase& p) {
  const std::string refusal = settings_refusal_of(p);
  if (!refusal.empty()) {
    return pools_text_of(p) + fmt::format("  no settings for a KvCache: {}\n", refusal);
  }
  const KvCacheOptions& o = p.settings.options;
  const std::string rest = fmt::format(
      "max_sequences {}, max_batch_rows {},\n    max_sequence_tokens {}, max_step_tokens {}\n",
      o.max_sequences, o.max_batch_rows, o.max_sequence_tokens, o.max_step_tokens);
  if (o.groups.empty()) {
    return fmt::format("set num_blocks {}, block_size_tokens {}, {}", o.size.num_blocks,
                       o.layout.block_size_tokens, rest);
  }
  return pools_text_of(p) + fmt::format(
                                "set groups by capacity::groups_of, num_blocks {} (pages), "
                                "page_sequence_tokens {},\n    {}",
                                o.size.num_blocks, o.page_sequence_tokens, rest);
}

/// Heads of the columns of a trace, two: "p95: 9,000".
std::string trace_heads_of(const PlannedTrace& trace) {
  std::string text;
  for (const PlannedTrace::Row& at : trace.rows) {
    text += fmt::format(" {:>16}", fmt::format("p{:g}: {}", at.percentile, grouped(at.tokens)));
  }
  return text;
}

/// A line of the comparison behind its names.
std::string figures_of(const PlannedCase& p) {
  const MemoryPlan& plan = p.plan;
  if (!plan.weights_known) {
    return fmt::format("{:>12} {:>12} {:>12} {:>10} {:>12} {:>10}  {}weights unknown", "unknown",
                       grouped(plan.kv_bytes_per_token), "-", "-", grouped(plan.context_tokens),
                       "-", plan.fits ? "" : "DOES NOT FIT; ");
  }
  std::string text =
      fmt::format("{:>12} {:>12} {:>12} {:>10} {:>12} {:>10}",
                  fmt::format("{}{:.0f}", plan.weights_exact ? "" : "~",
                              static_cast<double>(plan.weights_bytes) / kMiB),
                  grouped(plan.kv_bytes_per_token), grouped(plan.num_blocks),
                  grouped(plan.max_batch), grouped(plan.context_tokens), grouped(plan.max_context));
  if (p.trace) {
    for (const PlannedTrace::Row& at : p.trace->rows) {
      text += fmt::format(" {:>16}", at.batch > 0
                                         ? grouped(at.batch)
                                         : fmt::format("0 {}", capacity::name_of(at.limited_by)));
    }
  }
  return text + fmt::format("  {}{}", capacity::name_of(plan.batch_limited_by),
                            plan.fits ? "" : "; DOES NOT FIT");
}

}  // namespace

std::string text_of(const PlannedCase& p) {
  std::string ranks;
  if (p.options.tensor_parallel > 1 || p.options.pipeline_parallel > 1) {
    ranks = fmt::format(", a rank of tp {} x pp {} (stage {})", p.options.tensor_parallel,
                        p.options.pipeline_parallel, p.plan.stage);
  }
  std::string text =
      fmt::format("{} on {}{}: weights {}, K and V {}, retention {}\n", p.model.name, p.memory.name,
                  ranks, weights_types_of(p), kv_format_of(p), name_of(p.options.kept));
  text += fmt::format("  {} B of memory, {} B of it to be used (utilization {:g})\n\n",
                      grouped(p.memory.bytes), grouped(p.plan.budget_bytes),
                      p.options.utilization_permille / 1000.0);
  text += fmt::format("{}\n{}\n{}", breakdown_of(p), groups_of(p), answer_of(p));
  if (p.trace) text += fmt::format("\n{}", trace_of(*p.trace, p.plan.weights_known));
  if (p.plan.fits && p.plan.weights_known) text += fmt::format("\n{}", settings_text_of(p));
  const std::vector<std::string> notes = notes_of(p);
  if (!notes.empty()) text += fmt::format("\nnotes\n  {}\n", fmt::join(notes, "\n  "));
  return text;
}

std::string explanation_of(const PlannedCase& p) {
  std::string text = fmt::format("\n{} on {}, the arithmetic\n", p.model.name, p.memory.name);
  const std::vector<capacity::PlanLine> lines = lines_of(p);
  std::size_t width = 0;
  for (const capacity::PlanLine& line : lines) width = std::max(width, line.name.size());
  if (const capacity::GpuSpec* gpu = capacity::find_gpu(p.memory.name)) {
    text += fmt::format("  {:<{}} {}\n", "the GPU's memory", width, gpu->memory_source);
    text += fmt::format("  {:<{}} {}\n", "its bandwidth", width, gpu->bandwidth_source);
    text += fmt::format("  {:<{}} {}\n", "its peak", width, gpu->flops_source);
  }
  for (const capacity::PlanLine& line : lines) {
    text += fmt::format("  {:<{}} {} = {} {}\n", line.name, width, line.arithmetic,
                        amount(line.value), line.unit);
  }
  return text;
}

std::string comparison_of(const std::vector<PlannedCase>& cases) {
  const auto traced =
      std::ranges::find_if(cases, [](const PlannedCase& p) { return p.trace.has_value(); });
  std::string text =
      fmt::format("{:<26} {:<16} {:>12} {:>12} {:>12} {:>10} {:>12} {:>10}", "model", "GPU",
                  "weights MiB", "KV B/token", "blocks", "batch", "of tokens", "longest");
  if (traced != cases.end()) text += trace_heads_of(*traced->trace);
  text += "  limited by\n";
  bool any_estimate = false;
  for (const PlannedCase& p : cases) {
    text += fmt::format("{:<26} {:<16} ", p.model.name, p.memory.name);
    text += p.refusal ? headline(*p.refusal) : figures_of(p);
    text += '\n';
    any_estimate |= !p.refusal && p.plan.weights_known && !p.plan.weights_exact;
  }
  if (any_estimate) text += "~: an estimate\n";
  if (traced != cases.end()) {
    text +=
        fmt::format("p50, p{:g}: how many of the trace's {} requests fit at a time, of its {}\n",
                    traced->trace->rows.back().percentile, grouped(traced->trace->requests),
                    "median length and of that percentile's");
  }
  return text;
}

}  // namespace kvarena::tools
