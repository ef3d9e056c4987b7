#include "kvarena/capacity/model_presets.hpp"

#include "capacity/ascii.hpp"
#include "capacity/files/config_json.hpp"
#include "capacity/parameters.hpp"

#include <algorithm>
#include <iterator>

namespace kvarena::capacity {
namespace {

/// A row of the table.
struct Preset {
  std::string_view name;
  std::string_view config;            ///< of its config.json what decides memory
  std::int64_t parameters_about = 0;  ///< as published, where no formula counts them
};

constexpr Preset kPresets[] = {
#include "capacity/model_presets.def"
};

}  // namespace

std::vector<std::string_view> model_preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

std::optional<ModelSpec> find_model_preset(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kPresets), std::end(kPresets),
                   [name](const Preset& preset) { return same_letters(preset.name, name); });
  if (found == std::end(kPresets)) return std::nullopt;
  ModelSpec model;
  ReadFailure failure;
  const std::string own_name(found->name);
  if (!model_from_config_text(found->config, own_name, model, failure)) return std::nullopt;
  model.name = own_name;
  model.source = "preset";
  if (!model.parameters && found->parameters_about > 0) {
    model.parameters_about = found->parameters_about;
    count_parameters(model);
  }
  return model;
}

}  // namespace kvarena::capacity
