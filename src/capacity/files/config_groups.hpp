#pragma once

/// @file
/// What the layers of a configuration keep for a sequence.

#include "capacity/files/config_family.hpp"
#include "capacity/files/config_values.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <optional>

namespace kvarena::capacity {

/// The parts of a configuration that describe a decoder.
struct DecoderConfig {
  ConfigValues text;                   ///< the decoder's own object
  std::optional<ConfigValues> vision;  ///< the image encoder's, beside it
  const ConfigFamily* family = nullptr;
  bool has_encoder = false;  ///< every layer also reads an encoder's tokens
};

/// Fills in model.groups, and model.notes with what was assumed. Requires model.shape. What cannot
/// be told is refused through config.text.
void add_config_groups(DecoderConfig& config, ModelSpec& model);

}  // namespace kvarena::capacity
