#pragma once

/// @file
/// Arithmetic of sizes that cannot wrap, and the largest numbers of a model. Sums and products of
/// values >= 0 saturate at 2^63 - 1, which is more than any memory and therefore never fits. The
/// largest numbers hold for all readers of models. They are far above any real model, and products
/// of a few of them fit into 63 bits. Pure functions.

#include <algorithm>
#include <cstdint>
#include <limits>

namespace kvarena::capacity {

inline constexpr std::int64_t kMostAmount = std::numeric_limits<std::int64_t>::max();
inline constexpr std::int64_t kMostLayers = 4096;   ///< of a model
inline constexpr std::int64_t kMostHeads = 65'536;  ///< of a layer; also the most experts
inline constexpr std::int64_t kMostDim = std::int64_t{1} << 20;  ///< elements of a head
inline constexpr std::int64_t kMostWidth = std::int64_t{1}
                                           << 24;  ///< elements of a residual stream or an MLP
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;  ///< longest context of a model

/// Returns a + b for a, b >= 0. Saturates.
constexpr std::int64_t plus(std::int64_t a, std::int64_t b) noexcept {
  return a > kMostAmount - b ? kMostAmount : a + b;
}
/// Returns a * b for a, b >= 0. Saturates.
constexpr std::int64_t times(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMostAmount : product;
}
template <class... Rest>
constexpr std::int64_t times(std::int64_t a, std::int64_t b, Rest... rest) noexcept {
  return times(times(a, b), static_cast<std::int64_t>(rest)...);
}
/// Returns a / b, rounded up, for a >= 0 and b >= 1.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace kvarena::capacity
