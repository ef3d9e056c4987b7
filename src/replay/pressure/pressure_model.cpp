#include "replay/pressure/pressure_model.hpp"

#include <algorithm>
#include <array>

namespace kvarena::replay::pressure {
namespace {

// Phi-3-mini: 3,821,079,552 parameters of two bytes. The numbers of both are from the models'
// public configuration and weight files.
const std::array<PressureModel, 2>& models() {
  static const std::array<PressureModel, 2> all = {{
      {.name = "Phi-3-mini",
       .shape = {.num_layers = 32,
                 .num_kv_heads = 32,
                 .head_dim_k = 96,
                 .head_dim_v = 96,
                 .dtype = DType::f16,
                 .block_size_tokens = 16,
                 .tile_order = std::nullopt},
       .num_q_heads = 32,
       .max_context_tokens = 4096,
       .weights_bytes = 3'821'079'552 * 2},
      {.name = "Qwen2.5-0.5B",
       .shape = {.num_layers = 24,
                 .num_kv_heads = 2,
                 .head_dim_k = 64,
                 .head_dim_v = 64,
                 .dtype = DType::bf16,
                 .block_size_tokens = 16,
                 .tile_order = std::nullopt},
       .num_q_heads = 14,
       .max_context_tokens = 32768,
       .weights_bytes = 988'065'536},
  }};
  return all;
}

}  // namespace

std::span<const PressureModel> pressure_models() { return models(); }

const PressureModel* find_pressure_model(std::string_view name) {
  const auto* found = std::find_if(models().begin(), models().end(),
                                   [name](const PressureModel& m) { return m.name == name; });
  return found == models().end() ? nullptr : found;
}

}  // namespace kvarena::replay::pressure
