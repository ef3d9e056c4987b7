#pragma once

/// @file
/// Counts parameters from shapes: the parts of an architecture and the parameters of each part. A
/// count is exact or absent. For an unknown architecture or incomplete shapes, the published number
/// is used.

#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// Sets parts, parameters and parameters_source from architecture and shape. When these are not
/// enough, the parts come from the published total (parameters_about) or are empty, and
/// parameters_source says why.
void count_parameters(ModelSpec& model);

/// Returns the parts of a `total` whose parts are unknown; `origin` is its source ("published,
/// rounded"). The parts are the experts, when the shapes give their number, and everything else
/// spread over the layers, rounded up. Requires layers.
std::vector<ParameterPart> parts_of_total(const TransformerShape& shape, std::int64_t total,
                                          std::string_view origin);

}  // namespace kvarena::capacity
