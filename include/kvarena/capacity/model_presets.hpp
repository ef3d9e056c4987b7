#pragma once

/// @file
/// Built-in models: the numbers of public configurations that decide how much memory a model takes.
/// A static table for any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <optional>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// Returns the names of all presets, sorted with letter case ignored.
KVARENA_EXPORT std::vector<std::string_view> model_preset_names();
/// Returns the preset with this name, letter case ignored, or nullopt. O(number of presets).
KVARENA_EXPORT std::optional<ModelSpec> find_model_preset(std::string_view name);

}  // namespace kvarena::capacity
