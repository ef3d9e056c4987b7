#pragma once

/// @file
/// Which layers and parameters a stage of a pipeline has. Pure functions.

#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::capacity {

/// How many layers of each group every stage has, [stages][groups]. Stages get layers as evenly as
/// they can, the first ones having one more. Groups do not say where their layers are, and are
/// taken as evenly mixed. O(layers * log groups).
std::vector<std::vector<std::int32_t>> layers_by_stage(std::span<const CacheGroup> groups,
                                                       std::int32_t stages);
/// How many of `part` a stage has, of a model with so many layers: layers, or one or none.
std::int64_t parts_of_stage(const ParameterPart& part, std::int32_t num_layers, std::int32_t stages,
                            std::int32_t stage) noexcept;

}  // namespace kvarena::capacity
