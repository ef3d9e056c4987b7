#pragma once

/// @file
/// The instances of the columns kernel and the shapes of their launches.

#include "kernels/columns/columns_limits.h"

#include <cstdint>

namespace kvarena::kernels {

/// The shape of a launch. A slab is the run of tokens that a thread block multiplies at once: a
/// multiple of 16.
struct ColumnsShape {
  std::int32_t columns;      ///< query columns of a thread block
  std::int32_t slab_tokens;  ///< tokens of a slab
  std::int32_t stages;       ///< slabs of K, and of V, in shared memory
  std::int32_t per_sm;       ///< thread blocks of a multiprocessor
};

/// The kinds of instances of a head_dim.
enum class ColumnsKind : std::uint8_t {
  narrow,        ///< two thread blocks of 64 columns a multiprocessor
  shared,        ///< as narrow, for rows with prefixes; head_dim is at most 128
  wide,          ///< one thread block of 128 columns; for rows with prefixes too
  narrow_short,  ///< as narrow, K of kLongKeyDim with V of kShortValueDim
  wide_short,    ///< one thread block of 128 columns, with these
  narrow_fp8,    ///< as narrow and shared, K and V of fp8_e4m3
  wide_fp8,      ///< as wide, with these
  latent_16,     ///< latents: one thread block of 16 columns
  latent_32,     ///< of 32
  latent_64,     ///< of 64
};

/// Whether V has kShortValueDim dims.
constexpr bool has_short_values(ColumnsKind kind) noexcept {
  return kind == ColumnsKind::narrow_short || kind == ColumnsKind::wide_short;
}

/// Whether instances of a head_dim serve rows that share prefixes.
constexpr bool serves_prefixes(std::int32_t head_dim, ColumnsKind kind) noexcept {
  return kind == ColumnsKind::shared || kind == ColumnsKind::wide ||
         kind == ColumnsKind::wide_fp8 || (kind == ColumnsKind::narrow_fp8 && head_dim <= 128);
}

/// Chooses the launch shape over K and V of fp8, whose slabs are converted to f16 in shared memory
/// by four warps: each has whole 16-token tiles of a slab, or an equal part of one.
constexpr ColumnsShape fp8_columns_shape(std::int32_t head_dim, bool is_wide) noexcept {
  const std::int32_t columns = is_wide ? 128 : 64;
  const std::int32_t per_sm = is_wide ? 1 : 2;
  switch (head_dim) {
    case 64: return {columns, 128, 2, per_sm};
    case 96: return {columns, 64, 3, per_sm};
    case 128: return {columns, 64, 3, per_sm};
    case 192: return is_wide ? ColumnsShape{128, 64, 2, 1} : ColumnsShape{64, 32, 3, 2};
    default: return {columns, 32, is_wide ? 3 : 2, per_sm};
  }
}

/// Chooses the launch shape. Two thread blocks of 64 columns keep 96 to 192 KiB of copies in flight
/// on a multiprocessor: more delays the stores at the end of a part, less leaves the memory idle.
/// One block of 128 columns has nothing beside it at its ends and keeps about as many as the
/// largest. With head_dim 256, the queries take shared memory too.
constexpr ColumnsShape columns_shape(std::int32_t head_dim, ColumnsKind kind) noexcept {
  const bool is_wide = kind == ColumnsKind::wide;
  switch (kind) {  // a latent of 64 tokens has 72 KiB
    case ColumnsKind::latent_16: return {16, 64, 2, 1};
    case ColumnsKind::latent_32: return {32, 64, 2, 1};
    case ColumnsKind::latent_64: return {64, 64, 2, 1};
    case ColumnsKind::narrow_short: return {64, 64, 2, 2};
    case ColumnsKind::wide_short: return {128, 48, 6, 1};
    case ColumnsKind::narrow_fp8: return fp8_columns_shape(head_dim, false);
    case ColumnsKind::wide_fp8: return fp8_columns_shape(head_dim, true);
    default: break;
  }
  switch (head_dim) {
    case 64: return is_wide ? ColumnsShape{128, 128, 6, 1} : ColumnsShape{64, 96, 2, 2};
    case 80: return is_wide ? ColumnsShape{128, 96, 6, 1} : ColumnsShape{64, 80, 2, 2};
    case 96: return is_wide ? ColumnsShape{128, 80, 6, 1} : ColumnsShape{64, 64, 2, 2};
    case 128:
      return is_wide                       ? ColumnsShape{128, 64, 6, 1}
             : kind == ColumnsKind::shared ? ColumnsShape{64, 48, 2, 2}
                                           : ColumnsShape{64, 64, 3, 2};
    case 192: return is_wide ? ColumnsShape{128, 48, 5, 1} : ColumnsShape{64, 32, 2, 2};
    default: return is_wide ? ColumnsShape{128, 32, 4, 1} : ColumnsShape{64, 32, 2, 2};
  }
}

/// Returns whether the columns of a row need thread blocks of 128 columns.
constexpr bool has_wide_columns(const ColumnsLimits& limits) noexcept {
  return limits.q_len * (limits.num_q_heads / limits.num_kv_heads) > 64;
}

/// Returns whether rows that share a prefix get wide thread blocks in any case. Two narrow ones on
/// a multiprocessor hide the begin and end of each other's parts, and one can have a part of the
/// prefix, which is bound by products, beside the other's own tokens; but large heads take all
/// their registers.
constexpr bool has_wide_prefixes(std::int32_t head_dim) noexcept { return head_dim > 128; }

/// Returns the kind of instance for `limits`.
constexpr ColumnsKind columns_kind(const ColumnsLimits& limits) noexcept {
  if (limits.head_dim == kLatentDim) {
    const std::int32_t columns = limits.q_len * (limits.num_q_heads / limits.num_kv_heads);
    return columns <= 16 ? ColumnsKind::latent_16
           : columns <= 32 || (bytes_of(limits.kv_dtype) == 1 && limits.fixed_tokens > 0)
               ? ColumnsKind::latent_32  // the kind that has the bits of latent_16
               : ColumnsKind::latent_64;
  }
  if (has_short_values(limits)) {
    return has_wide_columns(limits) ? ColumnsKind::wide_short : ColumnsKind::narrow_short;
  }
  const bool is_wide =
      has_wide_columns(limits) || (limits.shared_rows > 0 && has_wide_prefixes(limits.head_dim));
  if (limits.kv_dtype == DType::fp8_e4m3) {
    return is_wide ? ColumnsKind::wide_fp8 : ColumnsKind::narrow_fp8;
  }
  if (is_wide) return ColumnsKind::wide;
  if (limits.shared_rows == 0) return ColumnsKind::narrow;
  return ColumnsKind::shared;
}

/// Returns the launch shape for `limits`.
constexpr ColumnsShape columns_shape(const ColumnsLimits& limits) noexcept {
  return columns_shape(limits.head_dim, columns_kind(limits));
}

}  // namespace kvarena::kernels
