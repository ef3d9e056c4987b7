#pragma once

/// @file
/// The parts that a model's configuration is read in: what each layer is, by layer_types where it
/// has them, else by its family's rule; what the layers keep for a sequence; how weights are
/// stored.

#include "capacity/files/config_values.hpp"
#include "capacity/files/families.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvarena::capacity {

/// What one layer has; `none`: an MLP alone.
enum class ConfigLayer : std::uint8_t { full, window, chunked, delta_net, mamba, cross, none };

/// One for each of model.shape.num_layers; fewer when something was refused through `text`. A
/// window or chunk that the longest context does not reach is full attention. Adds to model.notes
/// what was assumed.
std::vector<ConfigLayer> config_layers(ConfigValues& text, const ModelFamily& family,
                                       ModelSpec& model);
/// Tokens of the windows or chunks; 0: no limit that the model's longest context would reach.
std::int64_t config_layer_limit(ConfigValues& text, const ModelFamily& family,
                                const ModelSpec& model, ConfigLayer layer);

/// The parts of a configuration that describe a decoder.
struct DecoderConfig {
  ConfigValues text;                   ///< the decoder's own object
  std::optional<ConfigValues> vision;  ///< the image encoder's, beside it
  const ModelFamily* family = nullptr;
  bool has_encoder = false;  ///< every layer also reads an encoder's tokens
};

/// Fills in model.groups, and model.notes with what was assumed. Requires model.shape. What cannot
/// be told is refused through config.text.
void add_config_groups(DecoderConfig& config, ModelSpec& model);

/// Fills in the formats of weights, experts and K and V from `text` and the object around it, and
/// model.notes with what a format's scales are and what was assumed. An unknown quantisation is
/// noted, not refused.
void add_config_formats(ConfigValues& text, ConfigValues& outer, ModelSpec& model);

}  // namespace kvarena::capacity
