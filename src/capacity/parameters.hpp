#pragma once

/// @file
/// Parameters from shapes: which parts an architecture has and how many numbers each. Exact, or not
/// at all: an architecture that is not known here, or shapes that do not say enough, leave the
/// count to what was published.

#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// Fills in parts, parameters and parameters_source from architecture and shape. Where they do not
/// tell, parts are what is known of the published total (parameters_about), or none, and the source
/// says why.
void count_parameters(ModelSpec& model);

/// Parts of a total of which no more is known than where it is from ("published, rounded"):
/// experts, where the shapes tell how many they are, and everything else by layers, rounded up.
/// Requires layers.
std::vector<ParameterPart> parts_of_total(const TransformerShape& shape, std::int64_t total,
                                          std::string_view origin);

}  // namespace kvarena::capacity
