#pragma once

/// @file
/// `TensorIndex`: the tensors in the header of a file of weights, and their sums. A plain value.
/// The readers of GGUF and safetensors headers make it after they have checked that offsets and
/// sizes fit the file.

#include "kvarena/capacity/model_spec.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvarena::capacity {

struct TensorInfo {
  std::string name;                 ///< as the file has it
  std::string_view type;            ///< "BF16", "q4_K": static text of the format's table
  std::vector<std::int64_t> shape;  ///< as in the file; GGUF's first dimension is contiguous
  std::int64_t elements = 0;        ///< product of the shape
  std::int64_t bytes = 0;           ///< stored, without padding
  std::int64_t offset = 0;          ///< from the beginning of its file's data
};

/// The tensors of a model.
struct TensorIndex {
  std::vector<TensorInfo> tensors;  ///< in the stored order; no name occurs twice
  std::vector<TypeTotal> types;     ///< by bytes, descending, then by name
  /// Elements of all tensors. In GGUF files, a quantised block counts the elements that it encodes,
  /// so the sum is the number of parameters. In safetensors, packed weights count the stored
  /// elements: eight 4-bit weights in an I32 are one element, and scales are elements too.
  std::int64_t elements = 0;
  std::int64_t bytes = 0;  ///< bytes of the stored tensors, without padding and headers
};

/// A set of tensors' names, which must outlive it. The names are sorted by their hashes, so a
/// hostile file cannot make look-ups slow, as it could with a hash table.
class TensorNames {
 public:
  explicit TensorNames(std::span<const TensorInfo> tensors);
  /// Returns whether a tensor has this name. O(log tensors).
  bool has(std::string_view name) const noexcept;
  /// Returns a repeated name, the first in alphabetical order, or "".
  std::string_view repeated() const noexcept;

 private:
  using Hashed = std::pair<std::size_t, std::string_view>;
  static Hashed hashed(std::string_view name) noexcept;

  std::vector<Hashed> names_;
};

/// Returns the tensor with this name, or nullptr. O(tensors).
const TensorInfo* find_tensor(const TensorIndex& index, std::string_view name) noexcept;

/// Makes an index with the sums of `tensors`. Requires that the sums do not overflow; the readers
/// check that all tensors fit their files.
TensorIndex index_of(std::vector<TensorInfo> tensors);

/// Returns a x b for a, b >= 0; -1 when the product exceeds 63 bits or `a` is -1.
constexpr std::int64_t checked_product(std::int64_t a, std::int64_t b) noexcept {
  if (a < 0 || b < 0 || (b != 0 && a > INT64_MAX / b)) return -1;
  return a * b;
}

}  // namespace kvarena::capacity
