#pragma once

/// @file
/// Named model shapes: the few numbers of a public model that decide the size of its KV cache. The
/// table is static. The functions are pure and may be called from any thread.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/export.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace kvarena {

/// What the configuration of a model says about attention.
struct ModelShape {
  std::string_view name;      ///< the public name, e.g. "Qwen2.5-0.5B"
  std::int32_t num_layers;    ///< attention layers
  std::int32_t num_q_heads;   ///< query heads
  std::int32_t num_kv_heads;  ///< KV heads
  std::int32_t head_dim;      ///< elements a head, of K and of V
  DType dtype;                ///< element type of the published weights
  std::int32_t max_position;  ///< tokens in the longest context that the publisher states
};

/// Returns all built-in shapes, sorted by name. The numbers come from the models' public
/// configuration files.
KVARENA_EXPORT std::span<const ModelShape> model_shapes() noexcept;
/// Returns the shape with this name (letter case is ignored), or nullptr. O(number of shapes).
KVARENA_EXPORT const ModelShape* find_model_shape(std::string_view name) noexcept;

}  // namespace kvarena
