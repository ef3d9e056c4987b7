#pragma once

/// @file
/// `PressureModel`: what pressure scenarios need to know of a model: the shape of its KV, the bytes
/// of its weights, its longest context. No model is loaded; weights are bytes of the real size.
/// Plain values; any thread.

#include "kvarena/base/layout.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::replay::pressure {

/// A model as memory sees it.
struct PressureModel {
  std::string name;
  UniformLayoutOptions shape;
  std::int32_t num_q_heads = 0;
  std::int64_t max_context_tokens = 0;  ///< prompt and output of one sequence
  std::int64_t weights_bytes = 0;       ///< of all parameters
};

/// Blocks of one sequence of the longest context.
inline std::int64_t context_blocks(const PressureModel& model) noexcept {
  const std::int64_t block = model.shape.block_size_tokens;
  return (model.max_context_tokens + block - 1) / block;
}

/// What find_pressure_model knows, the default first.
std::vector<std::string> pressure_model_names();
/// The model of that name here or among the presets of room 9, whose numbers it has; the whole
/// context is kept, whatever the model's windows. Nothing when there is none.
std::optional<PressureModel> find_pressure_model(std::string_view name);

}  // namespace kvarena::replay::pressure
