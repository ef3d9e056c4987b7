#pragma once

/// @file
/// Q of the Hopper kernels that multiply K of fp8 as it lies in the pool: each element is the sum
/// of two e4m3 numbers.

#include "kernels/common/hopper_fp8.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvarena::kernels {

/// Two rows of bf16 Q as operands. Their two numbers are exact, but for elements below 2^-8 of a
/// row's largest. Words of step j of row h are at h * (D / 32) + j: as loaded the 16-bit elements,
/// afterwards those of the larger and the smaller numbers in turn.
template <int D>
using SplitQuery = std::uint32_t[D / 16][4];

/// Loads 8 bytes that are used once, or zeros where `exists` is false.
__device__ __forceinline__ void load_half_piece(std::uint32_t& low, std::uint32_t& high,
                                                const void* from, bool exists) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0; mov.b32 %1, 0;\n"
      "@p ld.global.nc.L1::no_allocate.v2.b32 {%0,%1}, [%2];\n}"
      : "=&r"(low), "=&r"(high)
      : "l"(from), "r"(static_cast<int>(exists)));
}

/// Starts the loads of row h. `row` is its dim 0.
template <int D>
__device__ __forceinline__ void load_split_query_row(SplitQuery<D>& q, int h, const char* row,
                                                     int t, bool exists) {
#pragma unroll
  for (int j = 0; j < D / 32; ++j) {
    std::uint32_t(&words)[4] = q[h * (D / 32) + j];
    load_half_piece(words[0], words[1], row + j * 64 + t * 8, exists);
    load_half_piece(words[2], words[3], row + j * 64 + 32 + t * 8, exists);
  }
}

/// Returns four f16 rounded to e4m3, the first in the low byte.
__device__ __forceinline__ std::uint32_t pack_fp8(__half2 low, __half2 high) {
  std::uint32_t word;
  asm("{\n.reg .b16 a, b;\ncvt.rn.satfinite.e4m3x2.f16x2 a, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f16x2 b, %2;\nmov.b32 %0, {a, b};\n}"
      : "=r"(word)
      : "r"(reinterpret_cast<const std::uint32_t&>(low)),
        "r"(reinterpret_cast<const std::uint32_t&>(high)));
  return word;
}

/// Splits four numbers below 256 into words of their larger and smaller parts.
__device__ __forceinline__ void split_word(const float (&x)[4], std::uint32_t& large,
                                           std::uint32_t& small) {
  const __half2 first = __floats2half2_rn(x[0], x[1]);
  const __half2 second = __floats2half2_rn(x[2], x[3]);
  large = pack_fp8(first, second);
  std::uint32_t low;
  std::uint32_t high;
  convert_word(large, low, high);
  small = pack_fp8(__hsub2(first, reinterpret_cast<const __half2&>(low)),
                   __hsub2(second, reinterpret_cast<const __half2&>(high)));
}

/// A power of two, and its inverse.
struct QueryPower {
  float power;
  float inverse;
};

/// Returns the power of two by which a row with this largest element is divided before it is split:
/// the largest element becomes 128 at least and less than 256. The power is limited to values that
/// are normal numbers like their inverses. The inverse for a row with an infinite element is NaN.
__device__ __forceinline__ QueryPower split_query_power(float largest) {
  const unsigned exponent = min(max(__float_as_uint(largest) >> 23, 32U), 222U);
  return {__uint_as_float((exponent - 7U) << 23),
          largest < INFINITY ? __uint_as_float((254U + 7U - exponent) << 23) : NAN};
}

/// Divides loaded row h by its split_query_power and splits it. Returns the power. A row with an
/// infinite element becomes NaN.
template <int D>
__device__ __forceinline__ float split_query_row(SplitQuery<D>& q, int h) {
  const auto unpack = [](std::uint32_t pair) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  };
  float largest = 0.0F;
#pragma unroll
  for (int i = h * (D / 32); i < (h + 1) * (D / 32); ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 pair = unpack(q[i][j]);
      largest = fmaxf(largest, fmaxf(fabsf(pair.x), fabsf(pair.y)));
    }
  }
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
  const auto [power, inverse] = split_query_power(largest);
#pragma unroll
  for (int i = h * (D / 32); i < (h + 1) * (D / 32); ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 first = unpack(q[i][half * 2]);
      const float2 second = unpack(q[i][half * 2 + 1]);
      const float x[4] = {first.x * inverse, first.y * inverse, second.x * inverse,
                          second.y * inverse};
      split_word(x, q[i][half * 2], q[i][half * 2 + 1]);
    }
  }
  return power;
}

/// Sets `a` to the operand of dims 32 * step .. 32 * step + 31 of the larger parts (0) or the
/// smaller ones (1).
template <int D>
__device__ __forceinline__ void split_operand(std::uint32_t (&a)[4], const SplitQuery<D>& q,
                                              int step, int part) {
  a[0] = q[step][part];
  a[1] = q[D / 32 + step][part];
  a[2] = q[step][2 + part];
  a[3] = q[D / 32 + step][2 + part];
}

}  // namespace kvarena::kernels
