#include "plan_output.hpp"

#include "quantity.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace kvarena::tools {
namespace {

using capacity::GroupPlan;
using capacity::MemoryPlan;
using Json = nlohmann::ordered_json;

constexpr double kMiB = 1024.0 * 1024.0;

std::string_view weights_of(const PlannedCase& p) {
  return p.options.weights ? p.options.weights->name : std::string_view(p.model.weights_format);
}

std::string_view kv_of(const PlannedCase& p) {
  return p.options.kv ? p.options.kv->name : std::string_view(p.model.kv_format);
}

std::string_view name_of(capacity::KeptTokens kept) {
  return kept == capacity::KeptTokens::full ? "full" : "model";
}

std::string row(std::string_view name, std::int64_t pool, std::int64_t asked) {
  const auto mib = [](std::int64_t bytes) { return static_cast<double>(bytes) / kMiB; };
  return fmt::format("  {:<12} {:>19} {:>12.1f} {:>19} {:>12.1f}\n", name, grouped(asked),
                     mib(asked), grouped(pool), mib(pool));
}

std::string breakdown_of(const PlannedCase& p) {
  const MemoryPlan& plan = p.plan;
  const std::int64_t subtotal_asked = plan.asked_total_bytes - plan.overhead_bytes;
  std::string text = fmt::format(
      "  {:<12} {:>32} {:>32}\n  {:<12} {:>19} {:>12} {:>19} {:>12}\n", "",
      fmt::format("{} x {} tokens", grouped(p.options.batch), grouped(plan.context_tokens)),
      "pool of all that fits", "", "bytes", "MiB", "bytes", "MiB");
  text += row("weights", plan.weights_bytes, plan.weights_bytes);
  text += row("KV cache", plan.kv_cache_bytes, plan.asked_kv_bytes);
  text += row("activations", plan.activation_bytes, plan.activation_bytes);
  text += row("subtotal", plan.total_bytes - plan.overhead_bytes, subtotal_asked);
  text += row("overhead", plan.overhead_bytes, plan.overhead_bytes);
  text += row("total", plan.total_bytes, plan.asked_total_bytes);
  text += row("free", plan.free_bytes, p.memory.bytes - plan.asked_total_bytes);
  return text;
}

std::string groups_of(const PlannedCase& p) {
  std::string text = "K and V of a sequence\n";
  for (const GroupPlan& group : p.plan.groups) {
    text += fmt::format("  {:<18} {:>3} layers  {}\n", capacity::name_of(group.memory.kind),
                        group.memory.num_layers, formula_of(group.memory));
  }
  text += fmt::format("  at {} tokens {} B", grouped(p.plan.context_tokens),
                      grouped(p.plan.bytes_per_sequence));
  if (p.plan.full_bytes_at_context != p.plan.model_bytes_at_context) {
    text +=
        fmt::format("; all tokens kept {} B, those in the windows {} B (--retention)",
                    grouped(p.plan.full_bytes_at_context), grouped(p.plan.model_bytes_at_context));
  }
  text += '\n';
  return text;
}

std::string answer_of(const PlannedCase& p) {
  const MemoryPlan& plan = p.plan;
  std::string text = fmt::format(
      "{}: {} x {} tokens\n  {:<12} {} sequences of {} tokens (limited by {})\n"
      "  {:<12} {} tokens for each of {} (limited by {})\n",
      plan.fits ? "fits" : "DOES NOT FIT", grouped(p.options.batch), grouped(plan.context_tokens),
      "largest batch", grouped(plan.max_batch), grouped(plan.context_tokens),
      capacity::name_of(plan.batch_limited_by), "longest", grouped(plan.max_context),
      grouped(p.options.batch), capacity::name_of(plan.context_limited_by));
  if (p.options.data_parallel > 1) {
    text += fmt::format("  {:<12} {} sequences in {} replicas\n", "in all",
                        grouped(plan.max_batch * p.options.data_parallel), p.options.data_parallel);
  }
  if (plan.max_batch > max_sequences_of(p.options)) {
    text += fmt::format("  more than {} sequences at a time need --batch or --max-sequences\n",
                        grouped(max_sequences_of(p.options)));
  }
  for (const capacity::PlanChange& change : p.changes) {
    text += fmt::format("  would fit with {}\n", change.change);
  }
  if (!plan.fits && p.changes.empty()) {
    text += fmt::format("  no single change makes it fit; it takes {} B of {} B\n",
                        grouped(plan.asked_total_bytes), grouped(plan.budget_bytes));
  }
  return text;
}

std::string trace_of(const PlannedTrace& trace) {
  std::string text = fmt::format("trace of {} requests\n", grouped(trace.requests));
  for (const PlannedTrace::Row& at : trace.rows) {
    text += fmt::format("  percentile {:>4g}: {} tokens, {} at a time\n", at.percentile,
                        grouped(at.tokens), grouped(at.batch));
  }
  return text;
}

/// Why there is no cache for a plan, in words.
std::string refusal_of(const PlannedCase& p) {
  if (p.cache.code != StatusCode::unsupported) return describe(p.cache);
  switch (p.cache.resource) {
    case Resource::num_groups:
      return fmt::format("it has one group of layers, not {}", p.plan.groups.size());
    case Resource::window: return "it keeps all tokens: --retention full";
    case Resource::num_planes: return "it has no latents (MLA) and no recurrent states";
    case Resource::dtype:
      return fmt::format("K and V are not kept as {} there; bf16, f16, f32 and fp8_e4m3 are",
                         kv_of(p));
    case Resource::scale: return "it has no scales in the pool: --kv-scales none";
    default: return describe(p.cache);
  }
}

std::string settings_text_of(const PlannedCase& p) {
  if (p.cache) {
    return fmt::format(
        "set num_blocks {}, block_size_tokens {}, max_sequences {}, max_sequence_tokens {}\n",
        p.plan.num_blocks, p.options.block_size_tokens, max_sequences_of(p.options),
        p.plan.context_tokens);
  }
  std::string text = "pools\n";
  for (const GroupPlan& group : p.plan.groups) {
    text += fmt::format(
        "  {:<18} {} {} of {} B\n", capacity::name_of(group.memory.kind), grouped(group.num_units),
        group.memory.block_size_tokens > 0 ? "blocks" : "states", grouped(group.memory.unit_bytes));
  }
  text += fmt::format("  a KvCache cannot hold this yet: {}\n", refusal_of(p));
  return text;
}

std::string notes_of(const PlannedCase& p) {
  std::string text;
  if (!p.plan.weights_exact) {
    text += p.model.parameters
                ? fmt::format(
                      "  weights are an estimate: all of them as {}; embeddings, norms and "
                      "scales often take more\n",
                      weights_of(p))
                : fmt::format("  weights are estimated: {}\n", p.model.parameters_source);
  }
  for (const std::string& note : p.model.notes) text += fmt::format("  {}\n", note);
  if (p.memory.from_driver) {
    text += "  memory is nvidia-smi's figure; CUDA gives a process up to 2 % less\n";
  }
  return text;
}

Json json_of(const GroupPlan& group) {
  const capacity::GroupMemory& m = group.memory;
  return {{"kind", capacity::name_of(m.kind)},
          {"layers", m.num_layers},
          {"kv_heads", m.num_kv_heads},
          {"bytes_per_token", m.bytes_per_token},
          {"index_bytes_per_token", m.index_bytes_per_token},
          {"limit_tokens", m.limit_tokens > 0 ? Json(m.limit_tokens) : Json()},
          {"block_size", m.block_size_tokens > 0 ? Json(m.block_size_tokens) : Json()},
          {"unit_bytes", m.unit_bytes},
          {"num_units", group.num_units},
          {"units_per_sequence", group.units_per_sequence},
          {"pool_bytes", group.pool_bytes},
          {"formula", formula_of(m)}};
}

Json settings_of(const PlannedCase& p) {
  if (!p.cache) return {};
  return {{"num_blocks", p.plan.num_blocks},
          {"block_size_tokens", p.options.block_size_tokens},
          {"max_sequences", max_sequences_of(p.options)},
          {"max_batch_rows",
           std::min<std::int64_t>(max_sequences_of(p.options), p.options.max_step_tokens)},
          {"max_sequence_tokens", p.plan.context_tokens},
          {"max_step_tokens", p.options.max_step_tokens}};
}

Json optional_of(const std::optional<std::int64_t>& value) { return value ? Json(*value) : Json(); }

Json json_of(const capacity::TransformerShape& s) {
  return {{"layers", s.num_layers},
          {"hidden", s.hidden},
          {"q_heads", s.num_q_heads},
          {"kv_heads", s.num_kv_heads},
          {"head_dim", s.head_dim},
          {"ffn", s.ffn},
          {"vocab", s.vocab},
          {"max_position", s.max_position},
          {"tied_embeddings", s.tied_embeddings},
          {"experts", s.moe.num_experts}};
}

void add_memory(const MemoryPlan& plan, Json& json) {
  json["budget_bytes"] = plan.budget_bytes;
  json["weights_bytes"] = plan.weights_bytes;
  json["weights_exact"] = plan.weights_exact;
  json["kv_cache_bytes"] = plan.kv_cache_bytes;
  json["activation_bytes"] = plan.activation_bytes;
  json["overhead_bytes"] = plan.overhead_bytes;
  json["table_bytes"] = plan.table_bytes;
  json["total_bytes"] = plan.total_bytes;
  json["free_bytes"] = plan.free_bytes;
  json["kv_bytes_per_token"] = plan.kv_bytes_per_token;
  json["index_bytes_per_token"] = plan.index_bytes_per_token;
  json["kv_fixed_bytes_per_sequence"] = plan.kv_fixed_bytes_per_sequence;
  json["block_bytes"] = optional_of(plan.block_bytes);
  json["num_blocks"] = plan.num_blocks;
  json["bytes_per_sequence"] = plan.bytes_per_sequence;
  json["full_bytes_at_context"] = plan.full_bytes_at_context;
  json["model_bytes_at_context"] = plan.model_bytes_at_context;
  json["step_bytes"] = plan.step_bytes;
  json["asked_kv_bytes"] = plan.asked_kv_bytes;
  json["asked_total_bytes"] = plan.asked_total_bytes;
  json["max_batch"] = plan.max_batch;
  json["limited_by"] = capacity::name_of(plan.batch_limited_by);
  json["max_context"] = plan.max_context;
  json["context_limited_by"] = capacity::name_of(plan.context_limited_by);
}

void add_answers(const PlannedCase& p, Json& json) {
  json["fits"] = p.plan.fits;
  json["changes_that_fit"] = Json::array();
  for (const capacity::PlanChange& change : p.changes) {
    json["changes_that_fit"].push_back(change.change);
  }
  json["settings"] = settings_of(p);
  json["settings_refused"] = p.cache ? Json() : Json(refusal_of(p));
  json["groups"] = Json::array();
  for (const GroupPlan& group : p.plan.groups) json["groups"].push_back(json_of(group));
  if (!p.trace) return;
  json["trace"] = {{"requests", p.trace->requests}, {"rows", Json::array()}};
  for (const PlannedTrace::Row& at : p.trace->rows) {
    json["trace"]["rows"].push_back(
        {{"percentile", at.percentile}, {"tokens", at.tokens}, {"max_batch", at.batch}});
  }
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
                  ranks, weights_of(p), kv_of(p), name_of(p.options.kept));
  text += fmt::format("  {} B of memory, {} B of it to be used (utilization {:g})\n\n",
                      grouped(p.memory.bytes), grouped(p.plan.budget_bytes),
                      p.options.utilization_permille / 1000.0);
  text += fmt::format("{}\n{}\n{}", breakdown_of(p), groups_of(p), answer_of(p));
  if (p.trace) text += fmt::format("\n{}", trace_of(*p.trace));
  if (p.plan.num_blocks > 0) text += fmt::format("\n{}", settings_text_of(p));
  const std::string notes = notes_of(p);
  if (!notes.empty()) text += fmt::format("\nnotes\n{}", notes);
  return text;
}

std::string explanation_of(const PlannedCase& p) {
  std::string text = fmt::format("\n{} on {}, the arithmetic\n", p.model.name, p.memory.name);
  for (const capacity::PlanLine& line : p.plan.lines) {
    text += fmt::format("  {:<34} {} = {} {}\n", line.name, line.arithmetic, grouped(line.value),
                        line.unit);
  }
  return text;
}

std::string comparison_of(const std::vector<PlannedCase>& cases) {
  std::string text = fmt::format("{:<26} {:<16} {:>12} {:>12} {:>12} {:>10} {:>12} {:>10}  {}\n",
                                 "model", "GPU", "weights MiB", "KV B/token", "blocks", "batch",
                                 "of tokens", "longest", "limited by");
  for (const PlannedCase& p : cases) {
    text += fmt::format(
        "{:<26} {:<16} {:>12.0f} {:>12} {:>12} {:>10} {:>12} {:>10}  {}{}\n", p.model.name,
        p.memory.name, static_cast<double>(p.plan.weights_bytes) / kMiB,
        grouped(p.plan.kv_bytes_per_token), grouped(p.plan.num_blocks), grouped(p.plan.max_batch),
        grouped(p.plan.context_tokens), grouped(p.plan.max_context),
        capacity::name_of(p.plan.batch_limited_by), p.plan.fits ? "" : "; DOES NOT FIT");
  }
  return text;
}

Json json_of(const PlannedCase& p, bool explain) {
  Json json{{"model", p.model.name},
            {"model_source", p.model.source},
            {"gpu", p.memory.name},
            {"memory_bytes", p.memory.bytes},
            {"utilization", p.options.utilization_permille / 1000.0},
            {"context", p.plan.context_tokens},
            {"batch", p.options.batch},
            {"tp", p.options.tensor_parallel},
            {"pp", p.options.pipeline_parallel},
            {"dp", p.options.data_parallel},
            {"retention", name_of(p.options.kept)},
            {"weights_dtype", weights_of(p)},
            {"kv_dtype", kv_of(p)},
            {"block_size", p.options.block_size_tokens},
            {"max_batched_tokens", p.options.max_step_tokens},
            {"parameters", optional_of(p.model.parameters)},
            {"parameters_about", optional_of(p.model.parameters_about)},
            {"parameters_source", p.model.parameters_source},
            {"notes", p.model.notes},
            {"shape", json_of(p.model.shape)}};
  add_memory(p.plan, json);
  add_answers(p, json);
  if (!explain) return json;
  json["explain"] = Json::array();
  for (const capacity::PlanLine& line : p.plan.lines) {
    json["explain"].push_back({{"name", line.name},
                               {"arithmetic", line.arithmetic},
                               {"value", line.value},
                               {"unit", line.unit}});
  }
  return json;
}

}  // namespace kvarena::tools
