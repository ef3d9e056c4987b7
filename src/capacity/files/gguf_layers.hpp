#pragma once

/// @file
/// Layers of a GGUF model that keep other things than K and V of their own tokens: of an encoder's
/// text (T5) or image (Llama 3.2 Vision), or a recurrent state. Refusals are the keys'. Pure
/// functions of a header's keys.

#include "capacity/files/gguf_keys.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>
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

/// Whether keys make each layer recurrent, whatever its KV heads: those that are listed, or, where
/// none are, all but every `interval`-th, unless a key gives another interval.
std::vector<bool> recurrent_layers(GgufKeys& keys, std::int32_t num_layers, std::int64_t interval);
/// What a recurrent layer keeps: llama_hparams' n_embd_s and n_embd_r. None where no key says so.
std::optional<CacheGroup> recurrent_state(GgufKeys& keys, const TransformerShape& shape);

}  // namespace kvarena::capacity
