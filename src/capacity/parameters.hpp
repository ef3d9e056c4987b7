#pragma once

/// @file
/// Parameters from shapes: which parts an architecture has and how many numbers each. Exact, or not
/// at all: an architecture that is not known here, or shapes that do not say enough, leave the
/// count to what was published.

#include "kvarena/capacity/model_spec.hpp"

namespace kvarena::capacity {

/// Fills in parts, parameters and parameters_source from architecture and shape. Where they do not
/// tell, parts are what is known of the published total (parameters_about), or none, and the source
/// says why.
void count_parameters(ModelSpec& model);

}  // namespace kvarena::capacity
