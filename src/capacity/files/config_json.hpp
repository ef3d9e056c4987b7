#pragma once

/// @file
/// Reads a model from the configuration file (config.json) that Hugging Face's transformers store
/// beside the weights. Parameters are counted when the family's shapes are known. Pure functions
/// for any thread.

#include "capacity/files/byte_source.hpp"
#include "kvarena/base/status.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace kvarena::capacity {

/// Sets `model` from `config`, the content of `file`. The model's name is the name in the
/// configuration, which may be only the name of its family. On failure fills `failure` and returns
/// parse_error.
Status model_from_config(const nlohmann::json& config, const std::string& file, ModelSpec& model,
                         ReadFailure& failure);
/// Does the same from the file's text. Infinity and NaN, which Python writes, count as null.
Status model_from_config_text(std::string_view text, const std::string& file, ModelSpec& model,
                              ReadFailure& failure);

}  // namespace kvarena::capacity
