#pragma once

/// @file
/// Q and outputs of the Hopper kernels, in 16-byte pieces from and to global memory. A piece has
/// eight dims of a row. Lane t of a quad loads piece t of each 32 dims; a transpose inside the quad
/// gives each lane the pairs of dims that an operand of wgmma.cuh has in it. Outputs go the other
/// way.

#include "kernels/common/mma.cuh"

#include <cuda_runtime.h>

#include <cstdint>

namespace kvarena::kernels {

/// Exchanges word i of lane t of a quad with word t of lane i, in the first `kUsed` of `a`. Two
/// rounds over all of them, so that shuffles overlap.
template <int kUsed, int kCount>
__device__ __forceinline__ void transpose_quads(std::uint32_t (&a)[kCount][4], int t) {
  const bool odd = t & 1;
  const bool high = t & 2;
#pragma unroll
  for (int i = 0; i < kUsed; ++i) {
    const std::uint32_t x0 = __shfl_xor_sync(~0U, odd ? a[i][0] : a[i][1], 1);
    const std::uint32_t x1 = __shfl_xor_sync(~0U, odd ? a[i][2] : a[i][3], 1);
    a[i][0] = odd ? x0 : a[i][0];
    a[i][2] = odd ? x1 : a[i][2];
    a[i][1] = odd ? a[i][1] : x0;
    a[i][3] = odd ? a[i][3] : x1;
  }
#pragma unroll
  for (int i = 0; i < kUsed; ++i) {
    const std::uint32_t x0 = __shfl_xor_sync(~0U, high ? a[i][0] : a[i][2], 2);
    const std::uint32_t x1 = __shfl_xor_sync(~0U, high ? a[i][1] : a[i][3], 2);
    a[i][0] = high ? x0 : a[i][0];
    a[i][1] = high ? x1 : a[i][1];
    a[i][2] = high ? a[i][2] : x0;
    a[i][3] = high ? a[i][3] : x1;
  }
}

/// Loads 16 bytes that are used once, or zeros where `exists` is false.
__device__ __forceinline__ void load_piece(std::uint32_t (&words)[4], const void* from,
                                           bool exists) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; "
      "mov.b32 %3, 0;\n@p ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];\n}"
      : "=&r"(words[0]), "=&r"(words[1]), "=&r"(words[2]), "=&r"(words[3])
      : "l"(from), "r"(static_cast<int>(exists)));
}

/// Stores 16 bytes where `exists` is true.
__device__ __forceinline__ void store_piece(void* to, const std::uint32_t (&words)[4],
                                            bool exists) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1,%2,%3,%4};\n}" ::"l"(
          to),
      "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(static_cast<int>(exists))
      : "memory");
}

/// Stores 4 bytes where `exists` is true.
__device__ __forceinline__ void store_word(void* to, std::uint32_t word, bool exists) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.b32 [%0], %1;\n}" ::"l"(to),
               "r"(word), "r"(static_cast<int>(exists))
               : "memory");
}

/// The registers of two rows of Q with D dims. Piece j of row h is at h * (D / 32) + j. Where D is
/// no multiple of 32, the last 16 dims are at the end, as the operand has them.
template <int D>
using QueryRegisters = std::uint32_t[D / 16][4];

/// Starts the loads of row h. `row` is its dim 0.
template <int D>
__device__ __forceinline__ void load_query_row(QueryRegisters<D>& q, int h, const char* row, int t,
                                               bool exists) {
#pragma unroll
  for (int j = 0; j < D / 32; ++j) load_piece(q[h * (D / 32) + j], row + t * 16 + j * 64, exists);
  if constexpr (D % 32 != 0) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const auto* from = reinterpret_cast<const std::uint32_t*>(row + (D - 16 + 8 * e + 2 * t) * 2);
      q[D / 16 - 1][2 * h + e] = exists ? __ldg(from) : 0;
    }
  }
}

/// Converts loaded row h from bf16 to f16, which has the precision of bf16 but not its range: the
/// row is first divided by a power of two that brings its largest element near 1. Returns the
/// power.
template <int D>
__device__ __forceinline__ float narrow_query_row(QueryRegisters<D>& q, int h) {
  const auto low = [](std::uint32_t pair) { return __uint_as_float(pair << 16); };
  const auto high = [](std::uint32_t pair) { return __uint_as_float(pair & 0xFFFF0000U); };
  // Calls `change` with each word of the row.
  const auto each_word = [&](auto&& change) {
#pragma unroll
    for (int i = h * (D / 32); i < (h + 1) * (D / 32); ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) change(q[i][j]);
    }
    if constexpr (D % 32 != 0) {
#pragma unroll
      for (int e = 0; e < 2; ++e) change(q[D / 16 - 1][2 * h + e]);
    }
  };
  float largest = 0.0F;
  each_word([&](std::uint32_t word) {
    largest = fmaxf(largest, fmaxf(fabsf(low(word)), fabsf(high(word))));
  });
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
  // The largest power of two that is not above it, limited to values whose inverse is a normal
  // number.
  const unsigned exponent = min(max(__float_as_uint(largest) >> 23, 32U), 222U);
  const float inverse = __uint_as_float((254U - exponent) << 23);
  each_word([&](std::uint32_t& word) {
    word = pack_pair<__half>(low(word) * inverse, high(word) * inverse);
  });
  return __uint_as_float(exponent << 23);
}

/// Makes loaded rows operands.
template <int D>
__device__ __forceinline__ void transpose_query(QueryRegisters<D>& q, int t) {
  transpose_quads<D / 32 * 2>(q, t);
}

/// Sets `a` to the operand of dims 16 * step .. 16 * step + 15.
template <int D>
__device__ __forceinline__ void query_operand(std::uint32_t (&a)[4], const QueryRegisters<D>& q,
                                              int step) {
  const int j = step >> 1;
  const int e = step & 1;
  const bool is_rest = D % 32 != 0 && step == D / 16 - 1;
  a[0] = is_rest ? q[D / 16 - 1][0] : q[j][2 * e];
  a[1] = is_rest ? q[D / 16 - 1][2] : q[D / 32 + j][2 * e];
  a[2] = is_rest ? q[D / 16 - 1][1] : q[j][2 * e + 1];
  a[3] = is_rest ? q[D / 16 - 1][3] : q[D / 32 + j][2 * e + 1];
}

}  // namespace kvarena::kernels
