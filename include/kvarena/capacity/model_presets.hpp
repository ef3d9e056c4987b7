#pragma once

/// @file
/// Built-in models: the numbers of public configurations that decide what a model's memory is. A
/// static table; any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <optional>
#include <string_view>
#include <vector>

namespace kvarena::capacity {

/// The names of all presets, sorted without regard to the case of letters.
KVARENA_EXPORT std::vector<std::string_view> model_preset_names();
/// The preset of that name, letter case ignored. O(number of presets).
KVARENA_EXPORT std::optional<ModelSpec> find_model_preset(std::string_view name);

}  // namespace kvarena::capacity
