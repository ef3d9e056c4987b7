#pragma once

/// @file
/// The scale of elements of fp8 e4m3 that a pool keeps beside them: the smallest power of two with
/// which no finite element is more than 448, and at least 2^-100, so that scaling rounds nothing.

#include <cuda_runtime_api.h>

namespace kvarena::kernels {

/// Returns the bits of |x|, or 0 when x is not finite: the larger of two numbers has the larger
/// bits.
__device__ __forceinline__ unsigned finite_magnitude(float x) {
  const unsigned magnitude = __float_as_uint(x) & 0x7FFFFFFFU;
  return magnitude < 0x7F800000U ? magnitude : 0U;
}

/// Returns the exponent of the scale of elements whose largest finite magnitude has these bits. 448
/// is 1.75 x 2^8.
__device__ __forceinline__ int scale_exponent(unsigned most) {
  constexpr int kLeastExponent = -100;
  const int exponent = static_cast<int>(most >> 23) - 127 - 8;
  return max(exponent + ((most & 0x7FFFFFU) > 0x600000U ? 1 : 0), kLeastExponent);
}

/// Returns 2^exponent.
__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((exponent + 127) << 23);
}

}  // namespace kvarena::kernels
