#pragma once

/// @file
/// `TensorIndex`: what the header of a file of weights says of its tensors, and their sums. A plain
/// value, made by the readers of GGUF and safetensors headers, which have checked that offsets and
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

/// One stored tensor.
struct TensorInfo {
  std::string name;                 ///< as the file has it
  std::string_view type;            ///< "BF16", "q4_K": static text of the format's table
  std::vector<std::int64_t> shape;  ///< as the file has it: GGUF's first dimension is contiguous
  std::int64_t elements = 0;        ///< product of the shape
  std::int64_t bytes = 0;           ///< stored, without padding
  std::int64_t offset = 0;          ///< from the beginning of its file's data
};

/// The tensors of a model.
struct TensorIndex {
  std::vector<TensorInfo> tensors;  ///< as they are stored; no name twice
  std::vector<TypeTotal> types;     ///< by bytes, descending, then by name
  /// Of all tensors. Blocks of quantised GGUF types count the elements that they stand for, so
  /// there it is the number of parameters. In safetensors packed weights count what is stored:
  /// eight 4-bit weights in an I32 are one element, and scales are elements too.
  std::int64_t elements = 0;
  std::int64_t bytes = 0;  ///< stored tensors, without padding and headers
};

/// The names of tensors, which must stay. They are sorted by their hashes: nobody can make that
/// slow, as one can a hash table.
class TensorNames {
 public:
  explicit TensorNames(std::span<const TensorInfo> tensors);
  /// Whether one has that name. O(log tensors).
  bool has(std::string_view name) const noexcept;
  /// A name that is there twice, the first of the alphabet; or "".
  std::string_view repeated() const noexcept;

 private:
  using Hashed = std::pair<std::size_t, std::string_view>;
  static Hashed hashed(std::string_view name) noexcept;

  std::vector<Hashed> names_;
};

/// The tensor of that name, or nullptr. O(tensors).
const TensorInfo* find_tensor(const TensorIndex& index, std::string_view name) noexcept;

/// Sums `tensors` up. Requires sums that fit: tensors lie in files, which the readers check.
TensorIndex index_of(std::vector<TensorInfo> tensors);

/// a x b for a, b >= 0; -1 when 63 bits do not hold it, or a is -1 already.
constexpr std::int64_t checked_product(std::int64_t a, std::int64_t b) noexcept {
  if (a < 0 || b < 0 || (b != 0 && a > INT64_MAX / b)) return -1;
  return a * b;
}

}  // namespace kvarena::capacity
