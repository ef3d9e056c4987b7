#pragma once

/// @file
/// The element types of K, V, Q and outputs, and the size of each in bytes. Pure functions.

#include <cstdint>
#include <string_view>

namespace kvarena {

/// An element type. Layouts may use fp8 and int8; the CPU kernels refuse them. `latent_fp8` is the
/// format of a whole row, a latent of 576 elements in 656 bytes (latent_fp8.hpp).
enum class DType : std::uint8_t { f32, f16, bf16, fp8_e4m3, int8, latent_fp8 };
/// In the subject of `unsupported (dtype)`: a storage format that is none of these.
inline constexpr std::uint64_t kNoDType = ~std::uint64_t{0};

/// Returns the bytes of one element. 1 for latent_fp8, whose elements have different sizes.
constexpr std::int64_t bytes_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::fp8_e4m3:
    case DType::int8:
    case DType::latent_fp8: return 1;
  }
  return 0;
}

/// Returns whether a row is a number of equal elements: false for latent_fp8.
constexpr bool has_equal_elements(DType dtype) noexcept { return dtype != DType::latent_fp8; }

/// Returns "f32", "f16", "bf16", "fp8_e4m3", "int8" or "latent_fp8".
constexpr std::string_view name_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::fp8_e4m3: return "fp8_e4m3";
    case DType::int8: return "int8";
    case DType::latent_fp8: return "latent_fp8";
  }
  return "unknown";
}

}  // namespace kvarena
