#pragma once

/// @file
/// Arithmetic of sizes that cannot wrap: sums and products of values >= 0 saturate at 2^63 - 1,
/// which is more than any memory and therefore never fits. And what a model's numbers may be at
/// most, whoever reads them: far past any model, and small enough that products of a few of them
/// fit 63 bits. Pure functions.

#include <algorithm>
#include <cstdint>
#include <limits>

namespace kvarena::capacity {

inline constexpr std::int64_t kMostAmount = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kMostLayers = 4096;                   ///< of a model
inline constexpr std::int64_t kMostHeads = 65'536;                  ///< of a layer; experts too
inline constexpr std::int64_t kMostDim = std::int64_t{1} << 20;     ///< elements of a head
inline constexpr std::int64_t kMostWidth = std::int64_t{1} << 24;   ///< of a residual or an MLP
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;  ///< that a model reads

/// a + b; both >= 0.
constexpr std::int64_t plus(std::int64_t a, std::int64_t b) noexcept {
  return a > kMostAmount - b ? kMostAmount : a + b;
}
/// a * b; both >= 0.
constexpr std::int64_t times(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMostAmount : product;
}
/// The product of all.
template <class... Rest>
constexpr std::int64_t times(std::int64_t a, std::int64_t b, Rest... rest) noexcept {
  return times(times(a, b), static_cast<std::int64_t>(rest)...);
}
/// a / b, rounded up; a >= 0, b >= 1.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace kvarena::capacity
