// Plans: JSON in, JSON out.

#include "capi/convert.hpp"
#include "capi/json.hpp"
#include "capi/structs.hpp"

#include "kvarena/capacity/gpu_spec.hpp"
#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_files.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

using namespace kvarena;
using namespace kvarena::capi;

namespace {

using namespace kvarena::capacity;

/// A refusal and one line that says why.
struct Refusal {
  Status status;
  std::string why;
};

[[noreturn]] void refuse(const Status& status, std::string why) {
  throw Refusal{status, std::move(why)};
}

/// A member of PlanOptions that is a number.
template <class Value>
struct Number {
  std::string_view name;
  Value PlanOptions::*member;
  Option option;
};
constexpr std::array<Number<std::int64_t>, 6> kLongs{{
    {"memory_bytes", &PlanOptions::memory_bytes, Option::memory_bytes},
    {"context_tokens", &PlanOptions::context_tokens, Option::context_tokens},
    {"batch", &PlanOptions::batch, Option::batch},
    {"max_step_tokens", &PlanOptions::max_step_tokens, Option::max_step_tokens},
    {"context_overhead_bytes", &PlanOptions::context_overhead_bytes,
     Option::context_overhead_bytes},
    {"graph_bytes", &PlanOptions::graph_bytes, Option::graph_bytes},
}};
constexpr std::array<Number<std::int32_t>, 6> kInts{{
    {"utilization_permille", &PlanOptions::utilization_permille, Option::utilization_permille},
    {"block_size_tokens", &PlanOptions::block_size_tokens, Option::block_size_tokens},
    {"tensor_parallel", &PlanOptions::tensor_parallel, Option::tensor_parallel},
    {"pipeline_parallel", &PlanOptions::pipeline_parallel, Option::pipeline_parallel},
    {"data_parallel", &PlanOptions::data_parallel, Option::data_parallel},
    {"max_sequences", &PlanOptions::max_sequences, Option::max_sequences},
}};

constexpr std::array<std::string_view, 4> kScales{"none", "per_tensor", "per_head",
                                                  "per_token_head"};
constexpr std::array<std::string_view, 10> kFields{
    "context_tokens", "batch", "max_step_tokens", "max_sequences",   "utilization_permille",
    "kept",           "kv",    "weights",         "tensor_parallel", "pipeline_parallel"};

std::string text_of(const Json& value, std::string_view member) {
  if (value.is_string()) return value.get<std::string>();
  refuse({StatusCode::parse_error, Resource::name},
         std::string(member) + ": expected a string, found " + value.dump());
}

template <class Value>
Value number_of(const Json& value, std::string_view member, Option option) {
  if (!value.is_number_integer()) {
    refuse({StatusCode::parse_error, Resource::none, option},
           std::string(member) + ": expected a whole number, found " + value.dump());
  }
  // An unsigned number past 2^63 would read as negative.
  const bool is_huge = value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX;
  const std::int64_t number = is_huge ? INT64_MAX : value.get<std::int64_t>();
  constexpr auto kLeast = std::int64_t{std::numeric_limits<Value>::min()};
  constexpr auto kMost = std::int64_t{std::numeric_limits<Value>::max()};
  if (is_huge || number < kLeast || number > kMost) {
    const Status status = invalid_option(option, number, kLeast, kMost);
    refuse(status, describe(status));
  }
  return static_cast<Value>(number);
}

StorageFormat format_of(const Json& value, std::string_view member) {
  const std::string name = text_of(value, member);
  if (const StorageFormat* format = find_storage_format(name)) return *format;
  refuse(not_found(Resource::name, 0),
         std::string(member) + ": there is no storage format \"" + name + "\"");
}

ModelSpec model_of(const std::string& name) {
  if (std::optional<ModelSpec> preset = find_model_preset(name)) return *preset;
  std::string why;
  const Result<ModelSpec> read = read_model(name, why);
  if (!read) {
    refuse(read.status(), "model: no built-in model is called \"" + name + "\", and " + why);
  }
  return *read;
}

CacheTarget target_of_gpu(const GpuSpec& gpu) {
  CacheTarget target;
  target.kind = DeviceKind::cuda;
  target.num_sms = gpu.num_sms;
  return target;
}

/// Takes a member that is no number. Returns whether there is one of that name.
bool take_word(const std::string& member, const Json& value, PlanOptions& options) {
  if (member == "gpu") {
    const std::string name = text_of(value, member);
    const GpuSpec* gpu = find_gpu(name);
    if (gpu == nullptr) refuse(not_found(Resource::name, 0), "gpu: there is no \"" + name + "\"");
    options.memory_bytes = gpu->cuda_memory_bytes.value_or(gpu->memory_bytes);
    if (gpu->vendor == "NVIDIA") options.target = target_of_gpu(*gpu);
  } else if (member == "weights") {
    options.weights = format_of(value, member);
  } else if (member == "kv") {
    options.kv = format_of(value, member);
  } else if (member == "kv_scale") {
    const std::string name = text_of(value, member);
    const auto found = std::find(kScales.begin(), kScales.end(), name);
    if (found == kScales.end()) {
      refuse(not_found(Resource::name, 0),
             "kv_scale: expected none, per_tensor, per_head or per_token_head, found " + name);
    }
    options.kv_scale = static_cast<ScaleKind>(found - kScales.begin());
  } else if (member == "kept") {
    const std::string name = text_of(value, member);
    if (name != "full" && name != "model") {
      refuse(not_found(Resource::name, 0), "kept: expected full or model, found " + name);
    }
    options.kept = name == "full" ? KeptTokens::full : KeptTokens::model;
  } else if (member == "num_sms") {
    options.target = CacheTarget{};
    options.target->kind = DeviceKind::cuda;
    options.target->num_sms = number_of<std::int32_t>(value, member, Option::num_sms);
  } else {
    return false;
  }
  return true;
}

/// Takes a member that is a number. Returns whether there is one of that name.
bool take_number(const std::string& member, const Json& value, PlanOptions& options) {
  for (const auto& number : kLongs) {
    if (number.name != member) continue;
    options.*number.member = number_of<std::int64_t>(value, member, number.option);
    return true;
  }
  for (const auto& number : kInts) {
    if (number.name != member) continue;
    options.*number.member = number_of<std::int32_t>(value, member, number.option);
    return true;
  }
  return false;
}

/// The whole request; numbers come last, so that memory_bytes wins over the GPU's.
PlanOptions options_of(const Json& request) {
  PlanOptions options;
  for (const auto& [member, value] : request.items()) take_word(member, value, options);
  for (const auto& [member, value] : request.items()) {
    if (member == "model" || take_number(member, value, options)) continue;
    PlanOptions unused;
    if (take_word(member, value, unused)) continue;
    refuse({StatusCode::parse_error, Resource::name},
           "there is no member \"" + member +
               "\" in a request; they are those of PlanOptions, "
               "model and gpu");
  }
  return options;
}

Json json_of(const GroupPlan& group) {
  const GroupMemory& memory = group.memory;
  return {{"kind", name_of(memory.kind)},
          {"layers", memory.num_layers},
          {"kv_heads", memory.num_kv_heads},
          {"head_dim_k", memory.head_dim_k},
          {"head_dim_v", memory.head_dim_v},
          {"bytes_per_token", memory.bytes_per_token},
          {"limit_tokens", memory.limit_tokens},
          {"block_size_tokens", memory.block_size_tokens},
          {"unit_bytes", memory.unit_bytes},
          {"num_units", group.num_units},
          {"units_per_sequence", group.units_per_sequence},
          {"pool_bytes", group.pool_bytes},
          {"num_parts", group.num_parts},
          {"blocks_per_page", group.blocks_per_page},
          {"part_bytes", group.part_bytes},
          {"num_pages", group.num_pages},
          {"pages_per_sequence", group.pages_per_sequence}};
}

Json memory_json(const MemoryPlan& plan) {
  return {{"stage", plan.stage},
          {"context_tokens", plan.context_tokens},
          {"budget_bytes", plan.budget_bytes},
          {"weights_known", plan.weights_known},
          {"weights_bytes", plan.weights_bytes},
          {"weights_exact", plan.weights_exact},
          {"kv_cache_bytes", plan.kv_cache_bytes},
          {"activation_bytes", plan.activation_bytes},
          {"table_bytes", plan.table_bytes},
          {"overhead_bytes", plan.overhead_bytes},
          {"total_bytes", plan.total_bytes},
          {"free_bytes", plan.free_bytes},
          {"num_blocks", plan.num_blocks},
          {"page_bytes", plan.page_bytes},
          {"num_pages", plan.num_pages},
          {"block_bytes", plan.block_bytes ? Json(*plan.block_bytes) : Json(nullptr)},
          {"kv_bytes_per_token", plan.kv_bytes_per_token},
          {"index_bytes_per_token", plan.index_bytes_per_token},
          {"kv_fixed_bytes_per_sequence", plan.kv_fixed_bytes_per_sequence},
          {"bytes_per_sequence", plan.bytes_per_sequence},
          {"full_bytes_at_context", plan.full_bytes_at_context},
          {"model_bytes_at_context", plan.model_bytes_at_context},
          {"step_bytes", plan.step_bytes},
          {"asked_kv_bytes", plan.asked_kv_bytes},
          {"asked_total_bytes", plan.asked_total_bytes},
          {"max_batch", plan.max_batch},
          {"max_context", plan.max_context},
          {"batch_limited_by", name_of(plan.batch_limited_by)},
          {"context_limited_by", name_of(plan.context_limited_by)},
          {"fits", plan.fits}};
}

/// The options of the cache that was planned; null with the reason where a cache cannot hold it.
void add_cache(const ModelSpec& model, const PlanOptions& options, const MemoryPlan& plan,
               Json& json) {
  const Result<PlannedCache> planned = cache_options(model, options, plan);
  json["cache"] = nullptr;
  json["cache_refused"] = planned ? Json(nullptr) : Json(describe(planned.status()));
  if (!planned) return;
  const KvCacheOptions& cache = planned->options;
  Json made;
  if (cache.groups.empty()) {
    made = {{"num_layers", cache.layout.num_layers},
            {"num_kv_heads", cache.layout.num_kv_heads},
            {"head_dim_k", cache.layout.head_dim_k},
            {"head_dim_v", cache.layout.head_dim_v},
            {"dtype", name_of(cache.layout.dtype)},
            {"block_size_tokens", cache.layout.block_size_tokens}};
  } else {
    for (const LayerGroup& group : cache.groups) made["groups"].push_back(capi::json_of(group));
    made["page_sequence_tokens"] = cache.page_sequence_tokens;
  }
  made["num_blocks"] = cache.size.num_blocks;
  made["num_q_heads"] = cache.num_q_heads;
  made["max_sequences"] = cache.max_sequences;
  made["max_sequence_tokens"] = cache.max_sequence_tokens;
  made["max_batch_rows"] = cache.max_batch_rows;
  made["max_step_tokens"] = cache.max_step_tokens;
  json["cache"] = std::move(made);
}

/// The changed member of a change, with its new value.
Json json_of(const PlanChange& change) {
  const PlanOptions& o = change.options;
  const std::string_view field = kFields[static_cast<std::size_t>(change.field)];
  Json json{{"member", field}};
  switch (change.field) {
    case PlanField::context_tokens: json["value"] = o.context_tokens; break;
    case PlanField::batch: json["value"] = o.batch; break;
    case PlanField::max_step_tokens: json["value"] = o.max_step_tokens; break;
    case PlanField::max_sequences: json["value"] = o.max_sequences; break;
    case PlanField::utilization_permille: json["value"] = o.utilization_permille; break;
    case PlanField::kept: json["value"] = o.kept == KeptTokens::full ? "full" : "model"; break;
    case PlanField::kv: json["value"] = o.kv ? o.kv->name : ""; break;
    case PlanField::weights: json["value"] = o.weights ? o.weights->name : ""; break;
    case PlanField::tensor_parallel: json["value"] = o.tensor_parallel; break;
    case PlanField::pipeline_parallel: json["value"] = o.pipeline_parallel; break;
  }
  return json;
}

Json plan_json(const std::string& text) {
  const Json request = Json::parse(text, nullptr, false);
  if (!request.is_object()) {
    refuse({StatusCode::parse_error, Resource::name}, "the request is no JSON object");
  }
  if (!request.contains("model")) {
    refuse({StatusCode::parse_error, Resource::name}, "the request has no \"model\"");
  }
  const PlanOptions options = options_of(request);
  const ModelSpec model = model_of(text_of(request.at("model"), "model"));
  const Result<MemoryPlan> made = plan(model, options);
  if (!made) refuse(made.status(), describe(made.status()));
  Json json{{"model", model.name}, {"model_source", model.source}};
  json.update(memory_json(*made));
  add_cache(model, options, *made, json);
  json["groups"] = Json::array();
  for (const GroupPlan& group : made->groups) json["groups"].push_back(json_of(group));
  json["changes_that_fit"] = Json::array();
  for (const PlanChange& change : changes_that_fit(model, options)) {
    json["changes_that_fit"].push_back(json_of(change));
  }
  json["lines"] = Json::array();
  for (const PlanLine& line : made->lines) {
    json["lines"].push_back({{"name", line.name},
                             {"arithmetic", line.arithmetic},
                             {"value", line.value},
                             {"unit", line.unit}});
  }
  json["notes"] = model.notes;
  return json;
}

}  // namespace

kvarena_status kvarena_plan_json(const char* request, char* out, size_t size, size_t* length) {
  return guarded([&]() -> Status {
    const TextTarget target{out, size, length};
    if (Status s = target.check(); !s) return s;
    if (request == nullptr) return refused_null();
    try {
      target.write(to_text(plan_json(request)));
      return {};
    } catch (const Refusal& refusal) {
      target.write(refusal.why);
      return refusal.status;
    }
  });
}

kvarena_status kvarena_presets_json(char* out, size_t size, size_t* length) {
  return guarded([&]() -> Status {
    const TextTarget target{out, size, length};
    if (Status s = target.check(); !s) return s;
    Json json{{"models", Json::array()}, {"gpus", Json::array()}};
    for (const std::string_view name : model_preset_names()) json["models"].push_back(name);
    for (const std::string_view name : gpu_preset_names()) json["gpus"].push_back(name);
    target.write(to_text(json));
    return {};
  });
}
