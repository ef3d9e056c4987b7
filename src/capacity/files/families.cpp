#include "capacity/files/families.hpp"

#include <algorithm>
#include <iterator>

namespace kvarena::capacity {
namespace {

using enum LayerRule;

constexpr ModelFamily kFamilies[] = {
#include "capacity/files/families.def"
};

constexpr ModelFamily kUnknown{.model_type = "", .rule = unknown};

const ModelFamily& find(std::string_view name, std::string_view ModelFamily::*by) noexcept {
  const auto* found = name.empty() ? std::end(kFamilies) : std::ranges::find(kFamilies, name, by);
  return found == std::end(kFamilies) ? kUnknown : *found;
}

}  // namespace

const ModelFamily& find_family(std::string_view model_type) noexcept {
  return find(model_type, &ModelFamily::model_type);
}

const ModelFamily& find_gguf_family(std::string_view architecture) noexcept {
  return find(architecture, &ModelFamily::gguf);
}

}  // namespace kvarena::capacity
