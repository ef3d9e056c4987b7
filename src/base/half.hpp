#pragma once

/// @file
/// Conversion of f16 and bf16 from and to f32 by bit arithmetic. Rounds to nearest, ties to even.
/// Infinities, subnormals and the sign are kept. A NaN stays a NaN and becomes quiet. Pure
/// functions.

#include "kvarena/base/dtype.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvarena {

/// Returns the f32 of these bf16 bits, exactly.
constexpr float f32_from_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Returns the nearest bf16.
constexpr std::uint16_t bf16_from_f32(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nan_bits = (bits >> 16) | 0x40U;
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return static_cast<std::uint16_t>(is_nan ? nan_bits : rounded);
}

/// Returns the f32 of these f16 bits, exactly. The magnitude is multiplied by 2^112, which corrects
/// the exponent's bias and makes subnormals normal. Exponent 31 becomes 255.
constexpr float f32_from_f16(std::uint16_t bits) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7FFFU) << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112F;
  const std::uint32_t finite = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t special =
      magnitude | 0x7F800000U | ((magnitude & 0x7FFFFFU) != 0 ? 0x400000U : 0U);
  return std::bit_cast<float>(sign | (magnitude >= 0x0F800000U ? special : finite));
}

/// Returns the nearest f16. Below 2^-14, adding 0.5 makes the f32 adder round to 2^-24, the step of
/// f16's subnormals. From 65520 on the result is infinite. The code selects instead of branching,
/// so that loops vectorise.
constexpr std::uint16_t f16_from_f32(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t small =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  const std::uint32_t rounded = (magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13;
  const std::uint32_t nan_bits = 0x7E00U | ((magnitude >> 13) & 0x1FFU);
  const std::uint32_t finite = magnitude < 0x38800000U ? small : rounded;
  const std::uint32_t bounded = magnitude >= 0x477FF000U ? 0x7C00U : finite;
  return static_cast<std::uint16_t>(sign | (magnitude > 0x7F800000U ? nan_bits : bounded));
}

/// Returns whether the CPU kernels compute with `dtype`: f32, f16 and bf16.
constexpr bool is_cpu_float(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

/// Reads element `index` of an array of `dtype`. Requires is_cpu_float(dtype).
inline float load_f32(const void* array, DType dtype, std::int64_t index) noexcept {
  const auto* bytes = static_cast<const std::byte*>(array) + index * bytes_of(dtype);
  if (dtype == DType::f32) {
    float value = 0.0F;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return dtype == DType::f16 ? f32_from_f16(bits) : f32_from_bf16(bits);
}

/// Writes `value`, rounded to the nearest value of `dtype`, to element `index`. Requires
/// is_cpu_float(dtype).
inline void store_f32(void* array, DType dtype, std::int64_t index, float value) noexcept {
  auto* bytes = static_cast<std::byte*>(array) + index * bytes_of(dtype);
  if (dtype == DType::f32) {
    std::memcpy(bytes, &value, sizeof value);
    return;
  }
  const std::uint16_t bits = dtype == DType::f16 ? f16_from_f32(value) : bf16_from_f32(value);
  std::memcpy(bytes, &bits, sizeof bits);
}

}  // namespace kvarena
