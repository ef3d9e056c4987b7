#pragma once

/// @file
/// Recurrent layers of a GGUF model: which they are, and what each keeps. Refusals are the keys'.
/// Pure functions of a header's keys.

#include "capacity/files/gguf_keys.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace kvarena::capacity {

/// Whether keys make each layer recurrent, whatever its KV heads: those that are listed, or, where
/// none are, all but every `interval`-th, unless a key gives another interval.
std::vector<bool> recurrent_layers(GgufKeys& keys, std::int32_t num_layers, std::int64_t interval);
/// What a recurrent layer keeps: llama_hparams' n_embd_s and n_embd_r. None where no key says so.
std::optional<CacheGroup> recurrent_state(GgufKeys& keys, const TransformerShape& shape);

}  // namespace kvarena::capacity
