#pragma once

/// @file
/// `read_model`: reads a ModelSpec from a model's files. It reads only headers, never weights.
/// Numbers in a file cannot make it use unlimited memory or time. A hostile or broken file gives
/// one clear error. Stateless; for any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <string>

namespace kvarena::capacity {

/// Reads the model at `path`. The content of `path` decides its kind:
/// - a transformers configuration (config.json) gives shapes, and parameters when the family is
/// known;
/// - a folder with a config.json also gives the exact bytes of the safetensors files in the folder;
/// - a folder with one .gguf file gives what the file gives;
/// - a .safetensors file or index with a config.json beside it gives what their folder gives;
/// - a .gguf file, or the first of a split one, gives shapes and exact bytes of weights.
///
/// The notes of the model say what was assumed. On failure sets `why` to "FILE: PLACE: found ...;
/// expected ...", in one line, and returns not_found, io_error or parse_error.
KVARENA_EXPORT Result<ModelSpec> read_model(const std::string& path, std::string& why);

}  // namespace kvarena::capacity
