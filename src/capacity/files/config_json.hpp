#pragma once

/// @file
/// A model from the configuration that Hugging Face's transformers keep beside its weights
/// (config.json). Parameters are counted where the family's shapes are known. Pure functions, any
/// thread.

#include "capacity/files/read_failure.hpp"
#include "kvarena/base/status.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace kvarena::capacity {

/// Sets `model` to what `config`, the whole of `file`, describes; its name is what the
/// configuration calls itself, which may be its family only. On failure fills `failure` and returns
/// parse_error.
Status model_from_config(const nlohmann::json& config, const std::string& file, ModelSpec& model,
                         ReadFailure& failure);
/// As above, from the file's text. Infinity and NaN, which Python writes, are taken for null.
Status model_from_config_text(std::string_view text, const std::string& file, ModelSpec& model,
                              ReadFailure& failure);

}  // namespace kvarena::capacity
