#include "capacity/files/tensor_index.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace kvarena::capacity {

const TensorInfo* find_tensor(const TensorIndex& index, std::string_view name) noexcept {
  const auto at = std::lower_bound(
      index.tensors.begin(), index.tensors.end(), name,
      [](const TensorInfo& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return at != index.tensors.end() && at->name == name ? &*at : nullptr;
}

TensorIndex index_of(std::vector<TensorInfo> tensors, std::string& repeated) {
  TensorIndex index;
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  const auto twice =
      std::adjacent_find(tensors.begin(), tensors.end(),
                         [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; });
  repeated = twice == tensors.end() ? std::string() : twice->name;
  std::map<std::string_view, TypeTotal> totals;
  for (const TensorInfo& tensor : tensors) {
    TypeTotal& total = totals[tensor.type];
    total.type = tensor.type;
    ++total.tensors;
    total.elements += tensor.elements;
    total.bytes += tensor.bytes;
    index.elements += tensor.elements;
    index.bytes += tensor.bytes;
  }
  for (const auto& [type, total] : totals) index.types.push_back(total);
  std::stable_sort(index.types.begin(), index.types.end(),
                   [](const TypeTotal& a, const TypeTotal& b) { return a.bytes > b.bytes; });
  index.tensors = std::move(tensors);
  return index;
}

}  // namespace kvarena::capacity
