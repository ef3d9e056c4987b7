#include "kvarena/capacity/model_presets.hpp"

#include "capacity/ascii.hpp"
#include "capacity/parameters.hpp"

#include <algorithm>
#include <iterator>

namespace kvarena::capacity {
namespace {

/// A row of the table: what a public configuration says.
struct Preset {
  std::string_view name;
  std::string_view architecture;
  std::int32_t num_layers = 0, hidden = 0, num_q_heads = 0, num_kv_heads = 0, head_dim = 0, ffn = 0;
  std::int64_t vocab = 0, max_position = 0;
  std::string_view weights = "bf16";
  std::string_view expert_weights = {};
  bool tied = false;
  std::int32_t full_layers = 0;  // 0: all that are not listed below
  std::int64_t limit_tokens = 0;
  std::int32_t limited_layers = 0;
  std::int32_t kv_lora_rank = 0, rope_dim = 0, index_dim = 0;
  MoeShape moe = {};
  std::int32_t recurrent_layers = 0;
  std::int64_t state_elements = 0, conv_elements = 0;
  std::int64_t parameters_about = 0, active_about = 0;
};

constexpr Preset kPresets[] = {
#include "capacity/model_presets.def"
};

CacheGroup attention_group(const Preset& p, CacheKind kind, std::int32_t num_layers) {
  CacheGroup group{.kind = kind, .num_layers = num_layers, .index_dim = p.index_dim};
  if (kind == CacheKind::latent) {
    group.latent_dim = p.kv_lora_rank + p.rope_dim;
    group.latent_value_dim = p.kv_lora_rank;
    return group;
  }
  group.num_kv_heads = p.num_kv_heads;
  group.head_dim_k = p.head_dim;
  group.head_dim_v = p.head_dim;
  if (kind != CacheKind::full) group.limit_tokens = p.limit_tokens;
  return group;
}

std::vector<CacheGroup> groups_of(const Preset& p) {
  std::vector<CacheGroup> groups;
  const std::int32_t rest = p.num_layers - p.limited_layers - p.recurrent_layers;
  const std::int32_t full = p.full_layers != 0 ? p.full_layers : rest;
  if (full > 0) {
    const CacheKind kind = p.kv_lora_rank != 0 ? CacheKind::latent : CacheKind::full;
    groups.push_back(attention_group(p, kind, full));
  }
  if (p.limited_layers > 0) {
    const CacheKind kind = p.architecture == "llama4_text" ? CacheKind::chunked : CacheKind::window;
    groups.push_back(attention_group(p, kind, p.limited_layers));
  }
  if (p.recurrent_layers > 0) {
    groups.push_back({.kind = CacheKind::recurrent,
                      .num_layers = p.recurrent_layers,
                      .state_elements = p.state_elements,
                      .conv_elements = p.conv_elements});
  }
  return groups;
}

ModelSpec spec_of(const Preset& p) {
  ModelSpec model;
  model.name = p.name;
  model.source = "preset";
  model.architecture = p.architecture;
  model.shape = {.num_layers = p.num_layers,
                 .hidden = p.hidden,
                 .num_q_heads = p.num_q_heads,
                 .num_kv_heads = p.num_kv_heads,
                 .head_dim = p.head_dim,
                 .ffn = p.ffn,
                 .vocab = p.vocab,
                 .max_position = p.max_position,
                 .tied_embeddings = p.tied,
                 .moe = p.moe,
                 .mla = {.kv_lora_rank = p.kv_lora_rank, .rope_dim = p.rope_dim}};
  model.groups = groups_of(p);
  model.weights_format = p.weights;
  model.expert_weights_format = p.expert_weights;
  model.kv_format = p.weights == "f16" ? "f16" : "bf16";
  if (p.parameters_about > 0) model.parameters_about = p.parameters_about;
  if (p.active_about > 0) model.parameters_active_about = p.active_about;
  count_parameters(model);
  return model;
}

}  // namespace

std::vector<std::string_view> model_preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

std::optional<ModelSpec> find_model_preset(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kPresets), std::end(kPresets),
                   [name](const Preset& preset) { return same_letters(preset.name, name); });
  if (found == std::end(kPresets)) return std::nullopt;
  return spec_of(*found);
}

}  // namespace kvarena::capacity
