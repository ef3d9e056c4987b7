#include "capacity/files/config_family.hpp"

#include <algorithm>
#include <iterator>

namespace kvarena::capacity {
namespace {

using enum LayerRule;

constexpr ConfigFamily kFamilies[] = {
#include "capacity/files/config_families.def"
};

constexpr ConfigFamily kUnknown{.model_type = "", .rule = unknown};

}  // namespace

const ConfigFamily& find_config_family(std::string_view model_type) noexcept {
  const auto* found = std::ranges::find(kFamilies, model_type, &ConfigFamily::model_type);
  return found == std::end(kFamilies) ? kUnknown : *found;
}

}  // namespace kvarena::capacity
