#include "capacity/files/tensor_index.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

namespace kvarena::capacity {

TensorNames::TensorNames(std::span<const TensorInfo> tensors) {
  names_.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) names_.push_back(hashed(tensor.name));
  std::ranges::sort(names_);
}

bool TensorNames::has(std::string_view name) const noexcept {
  return std::ranges::binary_search(names_, hashed(name));
}

std::string_view TensorNames::repeated() const noexcept {
  std::string_view first;
  for (std::size_t i = 1; i < names_.size(); ++i) {
    if (names_[i] != names_[i - 1]) continue;
    if (first.empty() || names_[i].second < first) first = names_[i].second;
  }
  return first;
}

TensorNames::Hashed TensorNames::hashed(std::string_view name) noexcept {
  return {std::hash<std::string_view>()(name), name};
}

const TensorInfo* find_tensor(const TensorIndex& index, std::string_view name) noexcept {
  const auto at = std::ranges::find(index.tensors, name, &TensorInfo::name);
  return at != index.tensors.end() ? &*at : nullptr;
}

TensorIndex index_of(std::vector<TensorInfo> tensors) {
  TensorIndex index;
  std::map<std::string_view, TypeTotal> totals;
  for (const TensorInfo& tensor : tensors) {
    TypeTotal& total = totals[tensor.type];
    ++total.tensors;
    total.elements += tensor.elements;
    total.bytes += tensor.bytes;
    index.elements += tensor.elements;
    index.bytes += tensor.bytes;
  }
  for (auto& [type, total] : totals) {
    total.type = type;
    index.types.push_back(total);
  }
  std::stable_sort(index.types.begin(), index.types.end(),
                   [](const TypeTotal& a, const TypeTotal& b) { return a.bytes > b.bytes; });
  index.tensors = std::move(tensors);
  return index;
}

}  // namespace kvarena::capacity
