#pragma once

/// @file
/// What layers of a GGUF model keep of an encoder: of a text's (T5), or of an image's (Llama 3.2
/// Vision). Refusals are the keys'. Pure functions of a header's keys.

#include "capacity/files/gguf_keys.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace kvarena::capacity {

/// Whether each layer reads an image's tokens instead of the text's.
std::vector<bool> image_layers(GgufKeys& keys, std::int32_t num_layers);
/// Tokens of one image of as many tiles as it may have: a tile's patches and its class token. Says
/// so in `notes`.
std::int64_t image_tokens(GgufKeys& keys, std::vector<std::string>& notes);
/// Where the layers of a model's first group read an encoder's tokens as well, a group of those: as
/// many as the longest context.
void add_encoder_group(GgufKeys& keys, ModelSpec& model);

}  // namespace kvarena::capacity
