#pragma once

/// @file
/// What every launcher checks before it launches, and what it returns after. Host code; pure;
/// compiled in builds without CUDA too, where sizes are planned that a GPU will need.

#include "base/range_checks.hpp"
#include "kvarena/base/status.hpp"
#include "kvarena/base/tile_order.hpp"
#include "kvarena/base/views.hpp"

#include <cstdint>
#include <string>

namespace kvarena::kernels {

/// What would have been supported: a Status of a launcher says which list in `native`.
enum class SupportedList : std::int32_t {
  none,
  moved_dtypes,        ///< pairs of append, gather, scatter and conversion
  tile_orders,         ///< and the block sizes that chunked takes
  chunked_dtypes,      ///< of a pool in chunked order
  chunked_head_dims,   ///< of a pool in chunked order
  prefill_dtypes,      ///< of q and out
  prefill_kv_dtypes,   ///< of K and V
  prefill_head_dims,   ///< of K and V
  decode_dtypes,       ///< of q and out
  decode_kv_dtypes,    ///< of K and V
  decode_head_dims,    ///< of K and V
  decode_block_sizes,  ///< tokens
};

/// unsupported, with the value given and the list of what is supported.
constexpr Status unsupported_by(SupportedList list, Resource argument,
                                std::int64_t value) noexcept {
  Status status = unsupported(argument, static_cast<std::uint64_t>(value));
  status.native = static_cast<std::int32_t>(list);
  return status;
}

/// unsupported, for an element type.
constexpr Status unsupported_by(SupportedList list, DType dtype) noexcept {
  return unsupported_by(list, Resource::dtype, static_cast<std::int64_t>(dtype));
}

/// One line for a person about a Status that a launcher returned: the value, and what is
/// supported. Allocates the string.
std::string describe_launch(const Status& status);

/// ok when smallest <= value <= largest.
constexpr Status in_range(Resource argument, std::int64_t value, std::int64_t smallest,
                          std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return invalid_argument(argument, value, smallest, largest);
}

/// ok when `pointer` is not null. The range says "not 0".
constexpr Status not_null(const void* pointer) noexcept {
  if (pointer != nullptr) return {};
  return invalid_argument(Resource::pointer, 0, 1, -1);
}

/// Whether an address or stride is a multiple of `alignment`.
inline bool is_aligned(const void* pointer, std::int64_t alignment) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(alignment) == 0;
}

/// ok when `pointer` is not null and a multiple of `alignment` bytes; else how far it is past one.
inline Status aligned_pointer(const void* pointer, std::int64_t alignment) noexcept {
  if (Status s = not_null(pointer); !s) return s;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto past = static_cast<std::int64_t>(address % static_cast<std::uintptr_t>(alignment));
  return in_range(Resource::alignment, past, 0, 0);
}

/// ok when `pointer` is not null and a multiple of an element of `dtype`, which is a type.
inline Status element_pointer(const void* pointer, DType dtype) noexcept {
  if (Status s = check_enum(Resource::dtype, dtype, DType::int8); !s) return s;
  return aligned_pointer(pointer, bytes_of(dtype));
}

/// What a launch returned (a cudaError_t), as a Status.
constexpr Status launch_status(std::int32_t error) noexcept {
  if (error == 0) return {};
  return {StatusCode::device_error, Resource::stream, Option::none, error, 0, 0, 0};
}

/// ok when K or V of a layer has a shape that kernels can address. O(1).
Status check_plane(const PlaneView& plane, std::int32_t block_size) noexcept;

/// ok when K and V of a layer do, and agree in their heads. O(1).
Status check_layer(const KvLayerView& kv) noexcept;

/// ok when block ids can be read through `tables` on the device (pointers, not contents). O(1).
Status check_tables(const BlockTableView& tables) noexcept;

}  // namespace kvarena::kernels
