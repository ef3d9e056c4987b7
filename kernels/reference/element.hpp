#pragma once

/// @file
/// The elements of a pool in the reference: the float types of the CPU kernels, and fp8 e4m3. The
/// results equal CUDA's conversions bit for bit: nearest, ties to even; fp8 saturates to 448.

#include "kernels/params.h"

#include "base/half.hpp"
#include "kvarena/base/latent_fp8.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace kvarena::kernels::reference {

/// Returns the f32 of an e4m3 number, exactly. e4m3 has no infinity, and one NaN of each sign.
constexpr float f32_from_fp8(std::uint8_t bits) noexcept {
  const std::uint32_t magnitude = bits & 0x7FU;
  if (magnitude == 0x7FU) return std::numeric_limits<float>::quiet_NaN();
  // The multiplication changes the exponent bias from 7 to 127. It makes subnormals normal too.
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120F;
  return (bits & 0x80U) != 0 ? -value : value;
}

/// Returns the nearest e4m3 number, at most 448 in magnitude. NaN stays NaN.
constexpr std::uint8_t fp8_from_f32(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return 0x7F;
  if (magnitude >= std::bit_cast<std::uint32_t>(448.0F)) {
    return static_cast<std::uint8_t>(sign | 0x7EU);
  }
  if (magnitude < std::bit_cast<std::uint32_t>(0x1p-6F)) {
    // Adding 2^14 rounds to 2^-9, the step of subnormals.
    const float stepped = std::bit_cast<float>(magnitude) + 0x1p14F;
    return static_cast<std::uint8_t>(
        sign | (std::bit_cast<std::uint32_t>(stepped) - std::bit_cast<std::uint32_t>(0x1p14F)));
  }
  const std::uint32_t rounded = (magnitude + 0x7FFFFU + ((magnitude >> 20) & 1U)) >> 20;
  return static_cast<std::uint8_t>(sign | (rounded - (120U << 3)));
}

/// Returns element `index` of an array of f32, f16, bf16 or fp8 e4m3.
inline float load_element(const void* array, DType dtype, std::int64_t index) noexcept {
  if (dtype != DType::fp8_e4m3) return load_f32(array, dtype, index);
  return f32_from_fp8(std::to_integer<std::uint8_t>(static_cast<const std::byte*>(array)[index]));
}

/// Writes `value`, rounded to the nearest value of the type, to element `index`.
inline void store_element(void* array, DType dtype, std::int64_t index, float value) noexcept {
  if (dtype != DType::fp8_e4m3) return store_f32(array, dtype, index, value);
  static_cast<std::byte*>(array)[index] = std::byte{fp8_from_f32(value)};
}

/// Returns element `dim` of a row in the format latent_fp8.
inline float load_latent_fp8(const std::byte* row, std::int32_t dim) noexcept {
  const std::byte* const at = row + latent_fp8_byte(dim);
  if (dim >= kLatentFp8ValueDim) return load_f32(at, DType::bf16, 0);
  const float scale = load_f32(row + kLatentFp8ScalesAt, DType::f32, dim / kLatentFp8Run);
  return load_element(at, DType::fp8_e4m3, 0) * scale;
}

/// Returns the scale that elements of fp8 e4m3 get in the pool: the smallest power of two with
/// which none of their finite values is more than 448, so that scaling rounds nothing. At least
/// 2^-100.
inline float fp8_scale_of(std::span<const float> values) noexcept {
  float most = 0.0F;
  for (const float value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  int exponent = -100;
  while (std::ldexp(448.0F, exponent) < most) ++exponent;
  return std::ldexp(1.0F, exponent);
}

/// Writes a row of kLatentFp8Dim values in the format latent_fp8.
inline void store_latent_fp8(std::span<const float> values, std::byte* row) noexcept {
  for (std::int32_t run = 0; run < kLatentFp8ValueDim / kLatentFp8Run; ++run) {
    const std::size_t first = static_cast<std::size_t>(run) * kLatentFp8Run;
    const float scale = fp8_scale_of(values.subspan(first, kLatentFp8Run));
    store_f32(row + kLatentFp8ScalesAt, DType::f32, run, scale);
    for (std::size_t dim = first; dim < first + kLatentFp8Run; ++dim) {
      store_element(row, DType::fp8_e4m3, static_cast<std::int64_t>(dim), values[dim] / scale);
    }
  }
  for (std::int32_t dim = kLatentFp8ValueDim; dim < kLatentFp8Dim; ++dim) {
    store_f32(row + latent_fp8_byte(dim), DType::bf16, 0, values[static_cast<std::size_t>(dim)]);
  }
}

/// Returns the scale of a KV head, or 1 when there is none.
inline float scale_of(const float* scales, bool per_head, std::int32_t head) noexcept {
  return scales == nullptr ? 1.0F : scales[per_head ? head : 0];
}

/// Converts one element from one type to another as the kernels do. Between equal types the bits
/// stay as they are. An fp8 source is multiplied by its scale, an fp8 target by the inverse of its
/// scale.
inline void move_element(const void* from, DType from_dtype, void* to, DType to_dtype,
                         float scale) noexcept {
  if (from_dtype == to_dtype) {
    for (std::int64_t i = 0; i < bytes_of(to_dtype); ++i) {
      static_cast<std::byte*>(to)[i] = static_cast<const std::byte*>(from)[i];
    }
    return;
  }
  float value = load_element(from, from_dtype, 0);
  if (from_dtype == DType::fp8_e4m3) value *= scale;
  if (to_dtype == DType::fp8_e4m3) value *= 1.0F / scale;
  store_element(to, to_dtype, 0, value);
}

}  // namespace kvarena::kernels::reference
