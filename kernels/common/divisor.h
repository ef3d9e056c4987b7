#pragma once

/// @file
/// Division by a number that is constant during a launch: a multiplication and a shift.

#include "kvarena/base/export.hpp"

#include <cstdint>

namespace kvarena::kernels {

/// A divisor, 1 or larger.
struct Divisor {
  std::int32_t value;
  std::uint32_t inverse;  ///< ceil(2^32 / value); not used for 1

  /// Returns x / value for 0 <= x, where `is_exact`.
  KVARENA_HOST_DEVICE std::int32_t divide(std::int32_t x) const noexcept {
    if (value == 1) return x;
    return static_cast<std::int32_t>(static_cast<std::uint64_t>(x) * inverse >> 32);
  }
};

constexpr Divisor divisor_of(std::int32_t value) noexcept {
  const auto wide = static_cast<std::uint64_t>(value);
  return {value, static_cast<std::uint32_t>(((std::uint64_t{1} << 32) + wide - 1) / wide)};
}

/// Returns whether `divide` is exact for 0 .. largest: the error of `inverse` must not add up to 1.
constexpr bool is_exact(Divisor divisor, std::int64_t largest) noexcept {
  if (divisor.value == 1) return true;
  const std::uint64_t error =
      static_cast<std::uint64_t>(divisor.inverse) * static_cast<std::uint64_t>(divisor.value) -
      (std::uint64_t{1} << 32);
  return largest < std::int64_t{1} << 31 &&
         error * static_cast<std::uint64_t>(largest) < std::uint64_t{1} << 32;
}

}  // namespace kvarena::kernels
