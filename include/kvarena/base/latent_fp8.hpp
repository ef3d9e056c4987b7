#pragma once

/// @file
/// The row format `latent_fp8`: a latent (MLA, arXiv 2405.04434) of 576 elements in 656 bytes, as
/// the sparse attention of DeepSeek-V3.2 keeps it. Byte 0: 512 elements in fp8 e4m3, which are V
/// too. Byte 512: four f32 scales, one for each 128 of them; the value of an element is element *
/// scale. Byte 528: 64 positional elements in bf16. Rows lie in `rows` order. Pure functions.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/export.hpp"

#include <cstdint>

namespace kvarena {

inline constexpr std::int32_t kLatentFp8Dim = 576;         ///< elements of a row
inline constexpr std::int32_t kLatentFp8ValueDim = 512;    ///< of them in fp8
inline constexpr std::int32_t kLatentFp8Run = 128;         ///< elements with one scale
inline constexpr std::int32_t kLatentFp8ScalesAt = 512;    ///< byte of the first scale
inline constexpr std::int32_t kLatentFp8PositionAt = 528;  ///< byte of the positional elements
inline constexpr std::int32_t kLatentFp8Bytes = 656;       ///< bytes of a row

/// Returns the byte of element `dim` of a row, 0 .. kLatentFp8Dim - 1.
KVARENA_HOST_DEVICE constexpr std::int32_t latent_fp8_byte(std::int32_t dim) noexcept {
  return dim < kLatentFp8ValueDim ? dim : kLatentFp8PositionAt + (dim - kLatentFp8ValueDim) * 2;
}

/// Returns the bytes of a row of `dim` elements of `dtype`: those of one head of one token.
constexpr std::int64_t row_bytes(DType dtype, std::int64_t dim) noexcept {
  return has_equal_elements(dtype) ? dim * bytes_of(dtype) : kLatentFp8Bytes;
}

}  // namespace kvarena
