#pragma once

/// @file
/// The arithmetic of token content for host and device code: it computes a 32-bit word from a
/// prefix, layer, kind, head and place in the row. sequence.hpp explains the use. Pure functions.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/export.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena::verify {

/// The kind of a row of elements.
enum class RowKind : std::uint8_t { key, value, query, index };

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ULL;  ///< 2^64 by the golden ratio

/// A bijection of 64 bits in which every bit depends on every other.
KVARENA_HOST_DEVICE constexpr std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ULL;
  return x ^ (x >> 32);
}

/// The random bits and the set bits of a lane. The sign, the lowest exponent bit and the mantissa
/// are random, so each element is a finite number with one of two exponents.
struct Pattern {
  std::uint32_t random;  ///< bits that are random
  std::uint32_t set;     ///< bits that are always 1
};

/// The pattern of two 16-bit elements or one f32.
KVARENA_HOST_DEVICE constexpr Pattern pattern_of(DType dtype, RowKind kind) noexcept {
  const bool query = kind == RowKind::query;
  switch (dtype) {
    case DType::bf16: return {0x80ff80ffU, query ? 0x40004000U : 0x3e003e00U};
    case DType::f16: return {0x87ff87ffU, query ? 0x40004000U : 0x30003000U};
    default: return {0x80ffffffU, query ? 0x40000000U : 0x3e000000U};
  }
}

/// The numbers from which the lanes of one row are computed.
struct RowSeed {
  std::uint32_t low;   ///< summand
  std::uint32_t high;  ///< factor; odd
};

KVARENA_HOST_DEVICE constexpr RowSeed row_seed(std::uint64_t prefix_hash, std::int32_t layer,
                                               RowKind kind, std::int32_t head) noexcept {
  const auto plane = (static_cast<std::uint64_t>(layer) << 32) |
                     (static_cast<std::uint64_t>(head) << 2) | static_cast<std::uint64_t>(kind);
  const std::uint64_t seed = mix(prefix_hash + plane * kGolden);
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32) | 1U};
}

/// Returns bytes 4 * i .. 4 * i + 3 of a row.
[[gnu::always_inline]] KVARENA_HOST_DEVICE constexpr std::uint32_t lane(RowSeed seed,
                                                                        std::uint32_t i,
                                                                        Pattern pattern) noexcept {
  std::uint32_t x = seed.low + i * 0x9e3779b9U;
  x ^= x >> 15;
  x *= seed.high;
  x ^= x >> 16;
  return (x & pattern.random) | pattern.set;
}

/// Fills `count` elements of (prefix, layer, kind, head) at `out`. Magnitudes are in [1/8, 1/2) for
/// K and V, and in [2, 8) for queries. Every value is exact in `dtype` (f32, f16 or bf16).
void fill_row(DType dtype, std::uint64_t prefix_hash, std::int32_t layer, RowKind kind,
              std::int32_t head, std::int32_t count, std::byte* out) noexcept;

/// Fills the key of a sparse-attention index as a pool keeps it: `count` elements of fp8_e4m3 at
/// `out`, one of at least 256 and the others of at most 240 in magnitude. Returns the scale, a
/// power of two in [1/16, 8]. Element times scale is exact in bf16. `count` is a multiple of 4.
float fill_index_row(std::uint64_t prefix_hash, std::int32_t layer, std::int32_t count,
                     std::byte* out) noexcept;

}  // namespace kvarena::verify
