#pragma once

/// @file
/// A model from the header of a GGUF file. Stateless; for any thread.

#include "capacity/files/gguf_header.hpp"
#include "capacity/files/read_failure.hpp"
#include "kvarena/base/status.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <string>

namespace kvarena::capacity {

/// Sets `model` to what `header`, read from `file`, says. Any architecture whose file has the keys
/// of a decoder (block_count, embedding_length, attention.head_count; head dims, KV heads, windows,
/// MLA ranks, experts and recurrent state where they are). Which layers have a window says the
/// file, or else the architecture where it is one of those known here; of one that is not, all
/// layers are taken to keep the whole context. Weights are exact, by the file's tensors. On failure
/// fills `failure`, which names the key, and returns parse_error.
Status model_from_gguf(const GgufHeader& header, const std::string& file, ModelSpec& model,
                       ReadFailure& failure);

}  // namespace kvarena::capacity
