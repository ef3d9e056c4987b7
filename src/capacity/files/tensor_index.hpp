#pragma once

/// @file
/// `TensorIndex`: what the header of a file of weights says of its tensors, and their sums. A plain
/// value, made by the readers of GGUF and safetensors headers, which have checked that offsets and
/// sizes fit the file.

#include "kvarena/capacity/model_spec.hpp"

#include <cstdint>
#include <string>
#include <string_view>
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
  std::vector<TensorInfo> tensors;  ///< by name, ascending; no name twice
  std::vector<TypeTotal> types;     ///< by bytes, descending, then by name
  /// Of all tensors. Blocks of quantised GGUF types count the elements that they stand for, so
  /// there it is the number of parameters. In safetensors packed weights count what is stored:
  /// eight 4-bit weights in an I32 are one element, and scales are elements too.
  std::int64_t elements = 0;
  std::int64_t bytes = 0;  ///< stored tensors, without padding and headers
};

/// The tensor of that name, or nullptr. O(log tensors).
const TensorInfo* find_tensor(const TensorIndex& index, std::string_view name) noexcept;

/// Sorts `tensors` by name and sums them up. A name that is there twice is put into `repeated`
/// (when several are, the first of the alphabet), which is empty otherwise. Requires sums that fit:
/// tensors lie in files, which the readers check.
TensorIndex index_of(std::vector<TensorInfo> tensors, std::string& repeated);

/// a x b for a, b >= 0; -1 when 63 bits do not hold it, or a is -1 already.
constexpr std::int64_t checked_product(std::int64_t a, std::int64_t b) noexcept {
  if (a < 0 || b < 0 || (b != 0 && a > INT64_MAX / b)) return -1;
  return a * b;
}

}  // namespace kvarena::capacity
