#pragma once

/// @file
/// Readers for the parts of a model's configuration: the kind of each layer, the data that the
/// layers keep for a sequence, and the formats of the weights. layer_types decides the kind of a
/// layer; without it, the rule of the family does.

#include "capacity/files/config_values.hpp"
#include "capacity/files/families.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvarena::capacity {

/// The kind of one layer. `none`: a layer with an MLP alone.
enum class ConfigLayer : std::uint8_t { full, window, chunked, delta_net, mamba, cross, none };

/// Returns the kinds of the model.shape.num_layers layers; fewer when something was refused through
/// `text`. A window or chunk that is not smaller than the longest context counts as full attention.
/// Adds assumptions to model.notes.
std::vector<ConfigLayer> config_layers(ConfigValues& text, const ModelFamily& family,
                                       ModelSpec& model);
/// Returns the tokens of the windows or chunks; 0 when the model's longest context does not reach
/// the limit.
std::int64_t config_layer_limit(ConfigValues& text, const ModelFamily& family,
                                const ModelSpec& model, ConfigLayer layer);

/// The parts of a configuration that describe a decoder.
struct DecoderConfig {
  ConfigValues text;                   ///< the decoder's own object
  std::optional<ConfigValues> vision;  ///< the image encoder's, beside it
  const ModelFamily* family = nullptr;
  bool has_encoder = false;  ///< every layer also reads an encoder's tokens
};

/// Sets model.groups and adds assumptions to model.notes. Requires model.shape. Unknown values are
/// refused through config.text.
void add_config_groups(DecoderConfig& config, ModelSpec& model);

/// Sets the formats of weights, experts, K and V from `text` and its enclosing object `outer`. Adds
/// a format's scales and assumptions to model.notes. An unknown quantisation is noted, not refused.
void add_config_formats(ConfigValues& text, ConfigValues& outer, ModelSpec& model);

}  // namespace kvarena::capacity
