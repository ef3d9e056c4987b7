#pragma once

/// @file
/// The error of computed attention, and the largest error that is accepted. Pure functions.

#include "verify/step_memory.hpp"

#include "base/half.hpp"

#include <cmath>
#include <cstdint>
#include <span>

namespace kvarena::verify {

/// Returns the relative L2 distance of one query token's outputs in one layer, over all heads. The
/// result is NaN when an output is NaN.
inline double relative_error(const AttentionSums& sums) noexcept {
  return std::sqrt(sums.difference / sums.exact);
}

/// Returns the largest accepted distance for outputs of `dtype`. Kernels of 16-bit types round the
/// weights once and the outputs once, so their limit is twice the unit roundoff. The limit of f32
/// allows for sums of thousands of terms of both signs.
constexpr double error_limit(DType dtype) noexcept {
  if (dtype == DType::bf16) return 0x1p-7;
  return dtype == DType::f16 ? 0x1p-10 : 0x1p-12;
}

/// Compares the elements of `found`, of type `dtype`, with `wanted`.
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

/// Returns the index of the element that differs most. A NaN counts as the largest difference.
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
