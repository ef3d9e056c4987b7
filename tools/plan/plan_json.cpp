#include "tools/plan/plan_case.hpp"

#include <nlohmann/json.hpp>

namespace kvarena::tools {
namespace {

using capacity::GroupPlan;
using capacity::MemoryPlan;
using Json = nlohmann::ordered_json;

Json optional_of(const std::optional<std::int64_t>& value) { return value ? Json(*value) : Json(); }

/// A figure of a pool of pages; a pool of one group has none.
std::optional<std::int64_t> positive(std::int64_t value) {
  return value > 0 ? std::optional(value) : std::nullopt;
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
          {"parts", group.num_parts},
          {"part_bytes", optional_of(positive(group.part_bytes))},
          {"blocks_per_page", optional_of(positive(group.blocks_per_page))},
          {"num_pages", optional_of(positive(group.num_pages))},
          {"pages_per_sequence", optional_of(positive(group.pages_per_sequence))},
          {"formula", formula_of(m)}};
}

Json settings_of(const PlannedCase& p) {
  const KvCacheOptions& o = p.settings.options;
  Json json = {{"max_sequences", o.max_sequences},
               {"max_batch_rows", o.max_batch_rows},
               {"max_sequence_tokens", o.max_sequence_tokens},
               {"max_step_tokens", o.max_step_tokens}};
  if (o.groups.empty()) {
    json["num_blocks"] = o.size.num_blocks;
    json["block_size_tokens"] = o.layout.block_size_tokens;
  } else {
    json["num_pages"] = o.size.num_blocks;
    json["block_size_tokens"] = o.groups[0].block_size_tokens;
    json["page_sequence_tokens"] = o.page_sequence_tokens;
  }
  return json;
}

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

/// Of a model's files, all ranks together.
Json json_of(const std::vector<capacity::TypeTotal>& totals) {
  Json list = Json::array();
  for (const capacity::TypeTotal& total : totals) {
    list.push_back({{"type", total.type},
                    {"tensors", total.tensors},
                    {"elements", total.elements},
                    {"bytes", total.bytes}});
  }
  return list;
}

/// Figures that need the weights are null where these are not known.
void add_memory(const MemoryPlan& plan, Json& json) {
  const auto known = [&](auto figure) { return plan.weights_known ? Json(figure) : Json(); };
  json["budget_bytes"] = plan.budget_bytes;
  json["weights_bytes"] = known(plan.weights_bytes);
  json["weights_exact"] = plan.weights_exact;
  json["kv_cache_bytes"] = known(plan.kv_cache_bytes);
  json["activation_bytes"] = plan.activation_bytes;
  json["overhead_bytes"] = plan.overhead_bytes;
  json["table_bytes"] = plan.table_bytes;
  json["total_bytes"] = known(plan.total_bytes);
  json["free_bytes"] = known(plan.free_bytes);
  json["budget_free_bytes"] = known(plan.budget_bytes - plan.total_bytes);
  json["kv_bytes_per_token"] = plan.kv_bytes_per_token;
  json["index_bytes_per_token"] = plan.index_bytes_per_token;
  json["kv_fixed_bytes_per_sequence"] = plan.kv_fixed_bytes_per_sequence;
  json["block_bytes"] = optional_of(plan.block_bytes);
  json["num_blocks"] = known(plan.num_blocks);
  json["page_bytes"] = optional_of(positive(plan.page_bytes));
  json["num_pages"] = plan.page_bytes > 0 ? known(plan.num_pages) : Json();
  json["bytes_per_sequence"] = plan.bytes_per_sequence;
  json["full_bytes_at_context"] = plan.full_bytes_at_context;
  json["model_bytes_at_context"] = plan.model_bytes_at_context;
  json["step_bytes"] = plan.step_bytes;
  json["asked_kv_bytes"] = plan.asked_kv_bytes;
  json["asked_total_bytes"] = known(plan.asked_total_bytes);
  json["max_batch"] = known(plan.max_batch);
  json["limited_by"] = known(capacity::name_of(plan.batch_limited_by));
  json["max_context"] = known(plan.max_context);
  json["context_limited_by"] = known(capacity::name_of(plan.context_limited_by));
}

Json json_of(const PlannedTrace& trace, bool weights_known) {
  Json json{{"requests", trace.requests}};
  if (trace.hit_rate) {
    json["hit_rate"] = *trace.hit_rate;
    json["hit_rate_unit"] = "prompt tokens found / prompt tokens";
    json["prompt_tokens"] = trace.prompt_tokens;
    json["computed_prompt_tokens"] = trace.prompt_tokens - trace.cached_tokens();
  }
  json["rows"] = Json::array();
  for (const PlannedTrace::Row& at : trace.rows) {
    Json row{{"percentile", at.percentile},
             {"tokens", at.tokens},
             {"max_batch", weights_known ? Json(at.batch) : Json()},
             {"limited_by", capacity::name_of(at.limited_by)}};
    if (trace.hit_rate) {
      row["cached_tokens"] = at.cached_tokens;
      row["max_batch_sharing"] = weights_known ? Json(at.batch_sharing) : Json();
    }
    json["rows"].push_back(std::move(row));
  }
  return json;
}

void add_answers(const PlannedCase& p, Json& json) {
  json["fits"] = p.plan.fits && !p.plan.weights_known ? Json() : Json(p.plan.fits);
  json["weights_unknown"] = p.plan.weights_known ? Json() : Json(weights_advice_of(p));
  json["changes_that_fit"] = Json::array();
  for (const capacity::PlanChange& change : p.changes) {
    json["changes_that_fit"].push_back(option_of(change));
  }
  const std::string refusal = settings_refusal_of(p);
  json["settings"] = refusal.empty() ? settings_of(p) : Json();
  json["settings_refused"] = refusal.empty() ? Json() : Json(refusal);
  json["groups"] = Json::array();
  for (const GroupPlan& group : p.plan.groups) {
    json["groups"].push_back(json_of(group));
    if (p.plan.weights_known) continue;
    for (const char* figure : {"num_units", "pool_bytes", "num_pages"})
      json["groups"].back()[figure] = nullptr;
  }
  if (!p.trace) return;
  json["trace"] = json_of(*p.trace, p.plan.weights_known);
}

Json refused_json_of(const PlannedCase& p) {
  return {{"model", p.model.name},
          {"model_source", p.model.source},
          {"gpu", p.memory.name},
          {"memory_bytes", p.memory.bytes},
          {"refused", headline(*p.refusal)},
          {"expected", p.refusal->expected},
          {"fits", false}};
}

}  // namespace

Json json_of(const PlannedCase& p, bool explain) {
  if (p.refusal) return refused_json_of(p);
  Json json{{"model", p.model.name},
            {"model_source", p.model.source},
            {"gpu", p.memory.name},
            {"memory_bytes", p.memory.bytes},
            {"refused", Json()},
            {"utilization", p.options.utilization_permille / 1000.0},
            {"context", p.plan.context_tokens},
            {"batch", p.options.batch},
            {"tp", p.options.tensor_parallel},
            {"pp", p.options.pipeline_parallel},
            {"stage", p.plan.stage},
            {"dp", p.options.data_parallel},
            {"retention", name_of(p.options.kept)},
            {"weights_dtype", weights_types_of(p)},
            {"kv_dtype", kv_format_of(p)},
            {"block_size", p.options.block_size_tokens},
            {"max_batched_tokens", p.options.max_step_tokens},
            {"max_sequences", max_sequences_of(p.options)},
            {"parameters", optional_of(p.model.parameters)},
            {"parameters_about", optional_of(p.model.parameters_about)},
            {"parameters_source", p.model.parameters_source},
            {"notes", notes_of(p)},
            {"weights_by_dtype", json_of(p.model.weights_by_dtype)},
            {"shape", json_of(p.model.shape)}};
  add_memory(p.plan, json);
  add_answers(p, json);
  if (!explain) return json;
  json["explain"] = Json::array();
  for (const capacity::PlanLine& line : lines_of(p)) {
    json["explain"].push_back({{"name", line.name},
                               {"arithmetic", line.arithmetic},
                               {"value", line.value},
                               {"unit", line.unit}});
  }
  return json;
}

}  // namespace kvarena::tools
