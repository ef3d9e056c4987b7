#pragma once

/// @file
/// How far computed attention is from the exact one, and how far it may be. Pure functions.

#include "verify/step_memory.hpp"

#include "base/half.hpp"

#include <cmath>
#include <cstdint>
#include <span>

namespace kvarena::verify {

/// Relative L2 distance of one query token's outputs in one layer, over all heads. NaN when one of
/// them is.
inline double relative_error(const AttentionSums& sums) noexcept {
  return std::sqrt(sums.difference / sums.exact);
}

/// The largest distance accepted for outputs of `dtype`. Kernels of 16-bit types round weights and
/// outputs once each: twice the unit roundoff. f32 sums thousands of terms of both signs.
constexpr double error_limit(DType dtype) noexcept {
  if (dtype == DType::bf16) return 0x1p-7;
  return dtype == DType::f16 ? 0x1p-10 : 0x1p-12;
}

/// Compares `found` of `dtype` with `wanted`.
inline AttentionSums compare_rows(std::span<const float> wanted, const std::byte* found,
                                  DType dtype) noexcept {
  AttentionSums sums;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double exact = wanted[i];
    const double difference = load_f32(found, dtype, static_cast<std::int64_t>(i)) - exact;
    sums.exact += exact * exact;
    sums.difference += difference * difference;
  }
  return sums;
}

/// Index of the element that differs most; a NaN differs most of all.
inline std::int64_t worst_element(std::span<const float> wanted, const std::byte* found,
                                  DType dtype) noexcept {
  std::int64_t worst = 0;
  double largest = -1.0;
  for (std::int64_t i = 0; i < std::ssize(wanted); ++i) {
    const double exact = wanted[static_cast<std::size_t>(i)];
    const double difference = std::abs(load_f32(found, dtype, i) - exact);
    if (difference <= largest) continue;
    if (std::isnan(difference)) return i;
    largest = difference;
    worst = i;
  }
  return worst;
}

}  // namespace kvarena::verify
