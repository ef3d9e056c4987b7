#pragma once

/// @file
/// What a configuration says of how its weights are stored.

#include "capacity/files/config_values.hpp"
#include "kvarena/capacity/model_spec.hpp"

namespace kvarena::capacity {

/// Fills in the formats of weights, experts and K and V from `text` and the object around it, and
/// model.notes with what a format's scales are and what was assumed. An unknown quantisation is
/// noted, not refused.
void add_config_formats(ConfigValues& text, ConfigValues& outer, ModelSpec& model);

}  // namespace kvarena::capacity
