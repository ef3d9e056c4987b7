#pragma once

/// @file
/// Reads a model from the header of a GGUF file. Stateless; for any thread.

#include "capacity/files/gguf_header.hpp"
#include "capacity/files/read_failure.hpp"
#include "kvarena/base/status.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <string>

namespace kvarena::capacity {

/// Sets `model` from `header`, which was read from `file`. The file of any architecture works when
/// it has the keys of a decoder: block_count, embedding_length and attention.head_count. Head dims,
/// KV heads, windows, MLA ranks, experts and recurrent state are read when they are present. The
/// file decides which layers have a window. If it does not, a known architecture decides. For an
/// unknown architecture, all layers are assumed to keep the whole context. Weights are exact,
/// because they are the file's tensors. On failure fills `failure`, which names the key, and
/// returns parse_error.
Status model_from_gguf(const GgufHeader& header, const std::string& file, ModelSpec& model,
                       ReadFailure& failure);

}  // namespace kvarena::capacity
