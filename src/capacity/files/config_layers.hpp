#pragma once

/// @file
/// What each layer of a configuration is: by layer_types where it has them, else by its family's
/// rule.

#include "capacity/files/config_family.hpp"
#include "capacity/files/config_values.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <vector>

namespace kvarena::capacity {

/// What one layer has; `none`: an MLP alone.
enum class ConfigLayer : std::uint8_t { full, window, chunked, delta_net, mamba, cross, none };

/// One for each of model.shape.num_layers; fewer when something was refused through `text`. A
/// window or chunk that the longest context does not reach is full attention. Adds to model.notes
/// what was assumed.
std::vector<ConfigLayer> config_layers(ConfigValues& text, const ConfigFamily& family,
                                       ModelSpec& model);
/// Tokens of the windows or chunks; 0: no limit that the model's longest context would reach.
std::int64_t config_layer_limit(ConfigValues& text, const ConfigFamily& family,
                                const ModelSpec& model, ConfigLayer layer);

}  // namespace kvarena::capacity
