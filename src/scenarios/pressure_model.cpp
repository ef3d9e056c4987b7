#include "scenarios/pressure_model.hpp"

#include "kvarena/capacity/model_presets.hpp"

#include <algorithm>
#include <array>

namespace kvarena::replay::pressure {
namespace {

constexpr std::int32_t kBlockTokens = 16;

/// A preset, what it is called here, and the type of its weights, of K and of V.
struct Known {
  std::string_view name;
  std::string_view preset;
  DType dtype;
};

constexpr std::array<Known, 2> kKnown = {{{"Phi-3-mini", "Phi-3-mini-4k-instruct", DType::f16},
                                          {"Qwen2.5-0.5B", "Qwen2.5-0.5B", DType::bf16}}};

}  // namespace

std::vector<std::string> pressure_model_names() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) {
    names.emplace_back(known.name);
    if (known.preset != known.name) names.emplace_back(known.preset);
  }
  return names;
}

std::optional<PressureModel> find_pressure_model(std::string_view name) {
  const auto* known = std::find_if(kKnown.begin(), kKnown.end(), [name](const Known& k) {
    return k.name == name || k.preset == name;
  });
  if (known == kKnown.end()) return std::nullopt;
  const auto preset = capacity::find_model_preset(known->preset);
  if (!preset || !preset->parameters) return std::nullopt;
  const capacity::CacheGroup& layers = preset->groups.front();  // alike in all layers
  return PressureModel{.name = std::string(known->name),
                       .shape = {.num_layers = layers.num_layers,
                                 .num_kv_heads = layers.num_kv_heads,
                                 .head_dim_k = layers.head_dim_k,
                                 .head_dim_v = layers.head_dim_v,
                                 .dtype = known->dtype,
                                 .block_size_tokens = kBlockTokens,
                                 .tile_order = std::nullopt},
                       .num_q_heads = preset->shape.num_q_heads,
                       .max_context_tokens = preset->shape.max_position,
                       .weights_bytes = *preset->parameters * bytes_of(known->dtype)};
}

}  // namespace kvarena::replay::pressure
