#pragma once

/// @file
/// How a warp makes operands of f16 in shared memory from 16-token tiles of fp8 K and V in the
/// pool. The raw bytes go from global memory to registers: with them in shared memory as well,
/// shared memory would be as busy as the tensor cores.

#include "kernels/common/hopper.cuh"

#include "kvarena/base/tile_order.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvarena::kernels {

/// The 16-byte pieces of a 16-token tile of fp8 as a warp has them, in loads of a piece a lane.
/// Where a token has whole pieces of 64 bytes, a load is an atom (tile_order.hpp), and becomes two
/// of f16. With pieces of 32 bytes it is two atoms, of which each becomes one. Plain rows have two
/// chunks of 16 bytes of each of the 16 tokens in a load; a chunk becomes an atom of pieces of 32
/// bytes. Stores of no quarter of a warp meet in a bank.
template <int D>
struct PieceOrder {
  static constexpr bool kIsRows = D % kSmallPiece != 0;
  static constexpr bool kIsSmall = !kIsRows && D % kPieceBytes != 0;
  static constexpr int kLoads = (kTileTokens * D + 511) / 512;       ///< of a 16-token tile
  static constexpr int kFromStep = kIsRows ? 2 * kChunkBytes : 512;  ///< bytes between loads
  static constexpr int kToStep = kIsRows ? 512 : 1024;  ///< bytes between loads, of f16
  static_assert(!kIsRows || D % kSmallPiece == kChunkBytes);

  int lane;
  int from;  ///< bytes to this lane's piece of load 0
  int to;    ///< bytes to the first 16 of the two that it becomes, of f16. The second is at ^ 16

  __device__ __forceinline__ explicit PieceOrder(int lane) : lane(lane) {
    const int half = lane >> 4;
    if constexpr (kIsRows) {
      from = token() * D + half * kChunkBytes;
      to = (token() >> 3) * kAtomTokens * D * 2 + half * 256 + (token() & 7) * kSmallPiece +
           ((token() >> 2 & 1) << 4);
    } else if constexpr (kIsSmall) {
      const int chunk = (lane & 1) ^ (token() >> 2);
      from = lane * kChunkBytes;
      to = half * 512 + token() * kPieceBytes + (((2 * chunk) ^ (token() >> 1)) << 4);
    } else {
      const int chunk = (lane & 1) + 2 * ((lane >> 2 & 1) ^ (lane >> 3 & 1));
      const int exchange = token() >> 1;
      from = token() * kPieceBytes + ((chunk ^ exchange) << 4);
      to = (chunk >> 1) * 512 + token() * kPieceBytes + (((2 * chunk & 3) ^ exchange) << 4);
    }
  }

  /// Returns this lane's token of load 0.
  __device__ __forceinline__ int token() const {
    if constexpr (kIsRows) return lane & 15;
    if constexpr (kIsSmall) return lane >> 1 & 7;
    return (lane >> 4) * 4 + (lane >> 1 & 3);
  }
  /// Returns whether this lane's token of load i is in the second eight.
  __device__ __forceinline__ bool is_second(int i) const {
    constexpr int kAtoms = kIsSmall ? D / kSmallPiece : D / kPieceBytes;  // of eight tokens
    if constexpr (kIsRows) return false;
    if constexpr (!kIsSmall) return i >= kAtoms;
    if (2 * i >= kAtoms) return true;
    return 2 * i + 1 >= kAtoms && lane >= 16;
  }
  /// Returns whether this lane has a piece in load i.
  __device__ __forceinline__ bool has(int i) const {
    return !kIsRows || 2 * i + 1 < D / kChunkBytes || lane < 16;
  }
};

/// Converts four elements to two words.
__device__ __forceinline__ void convert_word(std::uint32_t word, std::uint32_t& low,
                                             std::uint32_t& high) {
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\n"
      "cvt.rn.f16x2.e4m3x2 %1, b;\n}"
      : "=r"(low), "=r"(high)
      : "r"(word));
}

/// Stores 16 bytes in shared memory.
__device__ __forceinline__ void store_shared(std::uint32_t to, const std::uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

/// Converts a piece: 16 elements, whose first eight are stored at `first` and the others at
/// `second`.
__device__ __forceinline__ void store_piece_as_f16(std::uint32_t first, std::uint32_t second,
                                                   const std::uint32_t (&piece)[4]) {
  std::uint32_t words[4];
  convert_word(piece[0], words[0], words[1]);
  convert_word(piece[1], words[2], words[3]);
  store_shared(first, words);
  convert_word(piece[2], words[0], words[1]);
  convert_word(piece[3], words[2], words[3]);
  store_shared(second, words);
}

/// Two rows of bf16 Q as operands of products with fp8 K: each element is the sum of two e4m3
/// numbers. That is exact, but for elements below 2^-8 of a row's largest. Words of step j of row h
/// are at h * (D / 32) + j: as loaded the 16-bit elements, afterwards those of the larger and the
/// smaller numbers in turn.
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

/// Returns two numbers rounded to e4m3, the first in the low byte.
__device__ __forceinline__ std::uint32_t pack_fp8(float low, float high) {
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}

/// Splits four numbers below 256 into words of their larger and smaller parts.
__device__ __forceinline__ void split_word(const float (&x)[4], std::uint32_t& large,
                                           std::uint32_t& small) {
  large = pack_fp8(x[0], x[1]) | pack_fp8(x[2], x[3]) << 16;
  std::uint32_t low;
  std::uint32_t high;
  convert_word(large, low, high);
  const float2 first = __half22float2(reinterpret_cast<const __half2&>(low));
  const float2 second = __half22float2(reinterpret_cast<const __half2&>(high));
  small = pack_fp8(x[0] - first.x, x[1] - first.y) | pack_fp8(x[2] - second.x, x[3] - second.y)
                                                         << 16;
}

/// Splits loaded row h. The row is first divided by a power of two that brings its
/// largest element to 128 at least and below 256. Returns the power. A row with an infinite
/// element becomes NaN.
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
  // 2^7 times the inverse of the largest power of two that is not above it, limited to values
  // that are normal numbers like their inverses.
  const unsigned exponent = min(max(__float_as_uint(largest) >> 23, 32U), 222U);
  const float factor = largest < INFINITY ? __uint_as_float((254U + 7U - exponent) << 23) : NAN;
#pragma unroll
  for (int i = h * (D / 32); i < (h + 1) * (D / 32); ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 first = unpack(q[i][half * 2]);
      const float2 second = unpack(q[i][half * 2 + 1]);
      const float x[4] = {first.x * factor, first.y * factor, second.x * factor, second.y * factor};
      split_word(x, q[i][half * 2], q[i][half * 2 + 1]);
    }
  }
  return __uint_as_float((exponent - 7U) << 23);
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
