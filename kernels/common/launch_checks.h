#pragma once

/// @file
/// The checks that launchers make before a launch, and the conversion of launch errors. Host code;
/// pure. Builds without CUDA compile it too, because they plan sizes for a GPU.

#include "base/range_checks.hpp"
#include "kvarena/base/status.hpp"
#include "kvarena/base/tile_order.hpp"
#include "kvarena/base/views.hpp"

#include <cstdint>
#include <string>

namespace kvarena::kernels {

/// Lists of supported values. `native` in the Status of a launcher says which list applies. The
/// numbers are others than those of attention's checks (attention/checks.hpp), which are in the
/// same Status of a dispatcher.
enum class SupportedList : std::int32_t {
  none = 0,
  moved_dtypes = 1000,  ///< pairs of types of append, gather, scatter and conversion
  tile_orders,          ///< tile orders, and the block sizes of chunked
  chunked_dtypes,       ///< of a pool in chunked order
  chunked_head_dims,    ///< of a pool in chunked order
  prefill_dtypes,       ///< of q and out
  prefill_kv_dtypes,    ///< of K and V
  prefill_head_dims,    ///< of K and V
  decode_dtypes,        ///< of q and out
  decode_kv_dtypes,     ///< of K and V
  decode_head_dims,     ///< of K and V
  decode_block_sizes,   ///< tokens
  columns_dtypes,       ///< of K and V; q and out are f16 or bf16
  columns_head_dims,    ///< of K and V
  latent_dtypes,        ///< of q, the latents and out
  columns_devices,      ///< compute capability times ten
};

/// Returns unsupported with the value given and the list of supported values.
constexpr Status unsupported_by(SupportedList list, Resource argument,
                                std::int64_t value) noexcept {
  Status status = unsupported(argument, static_cast<std::uint64_t>(value));
  status.native = static_cast<std::int32_t>(list);
  return status;
}

/// Returns unsupported for an element type.
constexpr Status unsupported_by(SupportedList list, DType dtype) noexcept {
  return unsupported_by(list, Resource::dtype, static_cast<std::int64_t>(dtype));
}

/// Returns whether the Status of a launcher names a list of supported values.
constexpr bool has_supported_list(const Status& status) noexcept {
  return status.code == StatusCode::unsupported &&
         status.native >= static_cast<std::int32_t>(SupportedList::moved_dtypes);
}

/// Returns one line for a person about the Status of a launcher: the value, and what is supported.
/// Allocates the string.
std::string describe_launch(const Status& status);

/// The most bytes from one token to the next.
inline constexpr std::int64_t kMaxTokenStride = std::int64_t{1} << 40;

/// Returns ok when smallest <= value <= largest.
constexpr Status in_range(Resource argument, std::int64_t value, std::int64_t smallest,
                          std::int64_t largest) noexcept {
  if (value >= smallest && value <= largest) return {};
  return invalid_argument(argument, value, smallest, largest);
}

/// Returns whether the tokens of a plane in chunked order have no other bytes than its elements. V
/// that is a part of K has not.
constexpr bool has_own_chunks(const PlaneView& plane) noexcept {
  const auto bytes = static_cast<std::int32_t>(bytes_of(plane.dtype));
  return chunked_row_bytes(plane, bytes) == plane.head_dim * bytes;
}

/// Returns whether K or V has a scale for each token and head in the pool.
constexpr bool has_own_scales(const KvLayerView& kv) noexcept {
  return kv.key.scales_offset != 0 || kv.value.scales_offset != 0;
}

/// Returns ok when the bytes between tokens of [num_tokens, num_heads, head_dim] memory are 0
/// (dense), or a multiple of the element that keeps tokens apart.
constexpr Status check_token_stride(std::int64_t stride, std::int64_t num_heads,
                                    std::int64_t head_dim, DType dtype) noexcept {
  if (stride == 0) return {};
  const std::int64_t dense = num_heads * head_dim * bytes_of(dtype);
  if (Status s = in_range(Resource::span_size, stride, dense, kMaxTokenStride); !s) return s;
  return in_range(Resource::alignment, stride % bytes_of(dtype), 0, 0);
}
/// Does the same for new tokens of a plane.
constexpr Status check_token_stride(std::int64_t stride, const PlaneView& plane,
                                    DType dtype) noexcept {
  return check_token_stride(stride, plane.num_heads, plane.head_dim, dtype);
}

/// Returns ok when `pointer` is not null. The range in the Status means "not 0".
constexpr Status not_null(const void* pointer) noexcept {
  if (pointer != nullptr) return {};
  return invalid_argument(Resource::pointer, 0, 1, -1);
}

/// Returns whether an address or stride is a multiple of `alignment`.
inline bool is_aligned(const void* pointer, std::int64_t alignment) noexcept {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(alignment) == 0;
}

/// Returns ok when `pointer` is not null and a multiple of `alignment` bytes. Otherwise the Status
/// says how many bytes it is past a multiple.
inline Status aligned_pointer(const void* pointer, std::int64_t alignment) noexcept {
  if (Status s = not_null(pointer); !s) return s;
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto past = static_cast<std::int64_t>(address % static_cast<std::uintptr_t>(alignment));
  return in_range(Resource::alignment, past, 0, 0);
}

/// Returns ok when `dtype` is a valid type and `pointer` is not null and a multiple of its size.
inline Status element_pointer(const void* pointer, DType dtype) noexcept {
  if (Status s = check_enum(Resource::dtype, dtype, DType::latent_fp8); !s) return s;
  return aligned_pointer(pointer, bytes_of(dtype));
}

/// Converts the result of a launch (a cudaError_t) to a Status.
constexpr Status launch_status(std::int32_t error) noexcept {
  if (error == 0) return {};
  return {StatusCode::device_error, Resource::stream, Option::none, error, 0, 0, 0};
}

/// Returns ok when K or V of a layer has a shape that kernels can address. O(1).
Status check_plane(const PlaneView& plane, std::int32_t block_size) noexcept;

/// Returns ok when K and V of a layer both have such shapes, and the same number of heads. O(1).
Status check_layer(const KvLayerView& kv) noexcept;

/// Returns ok when the device can read block ids through `tables`. It checks pointers, not
/// contents. O(1).
Status check_tables(const BlockTableView& tables) noexcept;

}  // namespace kvarena::kernels
