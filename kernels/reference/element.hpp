#pragma once

/// @file
/// The elements of a pool in the reference: the float types of the CPU kernels, and fp8 e4m3. The
/// results equal CUDA's conversions bit for bit: nearest, ties to even; fp8 saturates to 448.

#include "kernels/params.h"

#include "base/half.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

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
