#pragma once

/// @file
/// `read_model`: a ModelSpec from a model's files. Only headers are read, never weights; what a
/// file claims bounds neither memory nor time. Hostile or broken files give one clear error.
/// Stateless; any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <string>

namespace kvarena::capacity {

/// What `path` is, its content says:
/// - a configuration of transformers (config.json): shapes; parameters where the family is known;
/// - a folder with one: as well the exact bytes of the safetensors files in it, if any; or a folder
///   with one .gguf file;
/// - a .safetensors file or index with a config.json beside it: the same;
/// - a .gguf file, or the first of a split one: shapes and exact bytes of weights.
/// `model.notes` says what was assumed. On failure sets `why` to "FILE: PLACE: found ...; expected
/// ...", in one line, and returns not_found, io_error or parse_error.
KVARENA_EXPORT Result<ModelSpec> read_model(const std::string& path, std::string& why);

}  // namespace kvarena::capacity
