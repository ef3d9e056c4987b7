#pragma once

/// @file
/// One tile of K and V in registers, loaded directly into operands of mma.m16n8k16. The rows of K's
/// operand are tokens; the rows of V's operand (transposed) are dims. Lane `l` of a warp is (g, t)
/// = (l / 4, l % 4), as in the PTX description of the fragments. Included by decode.cuh.

#include "kernels/common/mma.cuh"
#include "kvarena/base/tile_order.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace kvarena::kernels::decode {

/// Loads 16 bytes that are used once.
__device__ __forceinline__ uint4 load_stream(const char* address) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(address));
  return v;
}
/// Loads 8 bytes that are used once.
__device__ __forceinline__ uint2 load_stream_half(const char* address) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(address));
  return v;
}
/// Loads 4 bytes that are used once.
__device__ __forceinline__ unsigned load_stream_word(const char* address) {
  unsigned v;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(address));
  return v;
}
/// Loads from shared memory at this place in the code. Without it the compiler would keep the query
/// operands in registers for the whole loop, and there are too few registers.
__device__ __forceinline__ uint4 load_shared(const uint4* address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(static_cast<unsigned>(__cvta_generic_to_shared(address))));
  return v;
}
/// Returns word `i` of a vector. `i` is a compile-time constant after unrolling.
__device__ __forceinline__ unsigned word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/// Returns the token of rows g and k-slots g of the operands, within eight tokens. In this order
/// the two k-slots 2t and 2t + 1 of a lane are tokens t and t + 4, so that a load of V by a warp is
/// two runs of 256 bytes.
__device__ __forceinline__ int token_of(int g) { return (g >> 1) + (g & 1) * 4; }
/// Returns the token of V's slot `j` of a lane: tokens of k-slots 2t, 2t + 1, 2t + 8 and 2t + 9.
__device__ __forceinline__ int value_token(int t, int j) { return t + (j & 1) * 4 + (j >> 1) * 8; }

/// A bit for each of V's four slots of a lane.
inline constexpr unsigned kAllSlots = 15;
/// Returns a word of slot `j`, or 0 when the slot is not in `seen`.
__device__ __forceinline__ unsigned seen_word(unsigned value, unsigned seen, int j) {
  return (seen >> j & 1) != 0 ? value : 0;
}

/// A tile of elements of type S with head_dim D. `Math` is the type of the operands. `dot` adds the
/// logits of tokens token_of(g) and token_of(g) + 8 for columns 2t and 2t + 1 of each operand of
/// queries. `value_operand` returns the operand of V whose products with the weights of the same
/// columns are o[i]: of dims dim_of(i, g) and the next dim; values of slots that are not in `seen`
/// count as 0.
template <class S, int D>
struct Tile;

/// A tile of 16-bit K and V.
template <class S, int D>
struct Tile16 {
  using Math = S;
  static constexpr int kTilesAtOnce = 1;
  static constexpr int kBytes = kTileTokens * D * 2;
  static constexpr int kSteps = D / 16;
  static constexpr int kWide = D / 64;        // V groups of 64 dims
  static constexpr bool kTail = D % 64 != 0;  // and one group of 32 dims
  uint4 k[D / 16];
  uint4 v[D / 16];

  __device__ __forceinline__ void load_key(const char* tile, int g, int t) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int token = token_of(g) + (i & 1) * 8;
      k[i] = load_stream(tile + chunked_bytes(D * 2, token, (i >> 1) * 64 + t * 16));
    }
  }
  /// Loads V. v[4 * group + j] holds dims 8g .. 8g + 7 of the group, of token value_token(t, j). In
  /// the tail, the halves of v[4 * kWide ..] hold dims 4g .. 4g + 3 of the same tokens.
  __device__ __forceinline__ void load_value(const char* tile, int g, int t) {
#pragma unroll
    for (int i = 0; i < kWide * 4; ++i) {
      const int token = value_token(t, i & 3);
      v[i] = load_stream(tile + chunked_bytes(D * 2, token, (i >> 2) * 128 + g * 16));
    }
    if constexpr (kTail) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int byte = kWide * 128 + g * 8;
        const uint2 low =
            load_stream_half(tile + chunked_bytes(D * 2, value_token(t, j * 2), byte));
        const uint2 high =
            load_stream_half(tile + chunked_bytes(D * 2, value_token(t, j * 2 + 1), byte));
        v[kWide * 4 + j] = make_uint4(low.x, low.y, high.x, high.y);
      }
    }
  }
  __device__ __forceinline__ void clear_value(int j) {
#pragma unroll
    for (int group = 0; group < kWide; ++group) v[group * 4 + j] = make_uint4(0, 0, 0, 0);
    if constexpr (kTail) {
      uint4& pair = v[kWide * 4 + (j >> 1)];
      if ((j & 1) == 0) {
        pair.x = pair.y = 0;
      } else {
        pair.z = pair.w = 0;
      }
    }
  }
  /// Returns the first of four adjacent dims that lane t multiplies in step i.
  static __device__ __forceinline__ int query_dim(int i, int t) {
    return (i >> 1) * 32 + t * 8 + (i & 1) * 4;
  }
  /// Returns the first of two adjacent output dims of lane group g in step i.
  static __device__ __forceinline__ int dim_of(int i, int g) {
    if (i < kWide * 4) return (i >> 2) * 64 + g * 8 + (i & 3) * 2;
    return kWide * 64 + g * 4 + (i & 1) * 2;
  }
  template <int kOperands>
  __device__ __forceinline__ void dot(float (&even)[kOperands][4], float (&odd)[kOperands][4],
                                      const uint4 (&queries)[kOperands][kSteps / 2][32],
                                      int lane) const {
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      const uint4& low = k[i];
      const uint4& high = k[i + 1];
#pragma unroll
      for (int n = 0; n < kOperands; ++n) {
        const uint4 q = load_shared(&queries[n][i / 2][lane]);
        mma_m16n8k16<S>(even[n], {low.x, high.x, low.y, high.y}, q.x, q.y);
        mma_m16n8k16<S>(odd[n], {low.z, high.z, low.w, high.w}, q.z, q.w);
      }
    }
  }
  /// Converts V of step `i` to an operand.
  __device__ __forceinline__ void value_operand(unsigned (&a)[4], int i,
                                                unsigned seen = kAllSlots) const {
    const unsigned v0 = seen_word(value_word(i, 0), seen, 0);
    const unsigned v1 = seen_word(value_word(i, 1), seen, 1);
    const unsigned v2 = seen_word(value_word(i, 2), seen, 2);
    const unsigned v3 = seen_word(value_word(i, 3), seen, 3);
    // Places the halves of two tokens side by side: first the low dims, then the high dims.
    a[0] = __byte_perm(v0, v1, 0x5410);
    a[1] = __byte_perm(v0, v1, 0x7632);
    a[2] = __byte_perm(v2, v3, 0x5410);
    a[3] = __byte_perm(v2, v3, 0x7632);
  }

 private:
  /// Returns the word of token slot `j` (see load_value) that step `i` needs.
  __device__ __forceinline__ unsigned value_word(int i, int j) const {
    if (i < kWide * 4) return word(v[(i & ~3) + j], i & 3);
    return word(v[kWide * 4 + (j >> 1)], (j & 1) * 2 + (i & 1));
  }
};

template <int D>
struct Tile<__nv_bfloat16, D> : Tile16<__nv_bfloat16, D> {};
template <int D>
struct Tile<__half, D> : Tile16<__half, D> {};

/// A tile of fp8 e4m3 K and V, multiplied as f16, which holds every e4m3 value exactly.
template <int D>
struct Tile<__nv_fp8_e4m3, D> {
  using Math = __half;
  static constexpr int kTilesAtOnce = 2;  // as many bytes as one tile of 16-bit elements
  static constexpr int kBytes = kTileTokens * D;
  static constexpr int kSteps = D / 16;
  static constexpr int kGroups = D / 64;       // groups of 64 dims
  static constexpr bool kTail = D % 64 != 0;   // and one group of 32 dims
  static constexpr int kWords = D / 8 / 4;     // words of a token's V in a lane
  static constexpr bool kWide = D % 128 == 0;  // V consists of whole chunks
  unsigned k[kGroups * 8 + (kTail ? 4 : 0)];   // [group][half of the tokens][word]
  unsigned v[4][kWords];                       // [token slot][word]

  __device__ __forceinline__ void load_key(const char* tile, int g, int t) {
#pragma unroll
    for (int i = 0; i < kGroups * 2; ++i) {
      const int token = token_of(g) + (i & 1) * 8;
      const uint4 chunk = load_stream(tile + chunked_bytes(D, token, (i >> 1) * 64 + t * 16));
#pragma unroll
      for (int w = 0; w < 4; ++w) k[i * 4 + w] = word(chunk, w);
    }
    if constexpr (kTail) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = token_of(g) + half * 8;
        const uint2 part = load_stream_half(tile + chunked_bytes(D, token, kGroups * 64 + t * 8));
        k[kGroups * 8 + half * 2] = part.x;
        k[kGroups * 8 + half * 2 + 1] = part.y;
      }
    }
  }
  /// Loads V. v[j] holds dims of token value_token(t, j): sixteen dims from 16g on of
  /// each group of 128, eight dims from 8g on of a group of 64, and four dims from 4g on of the
  /// tail.
  __device__ __forceinline__ void load_value(const char* tile, int g, int t) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if constexpr (kWide) {
#pragma unroll
        for (int i = 0; i < D / 128; ++i) {
          const int byte = i * 128 + g * 16;
          const uint4 chunk = load_stream(tile + chunked_bytes(D, value_token(t, j), byte));
#pragma unroll
          for (int w = 0; w < 4; ++w) v[j][i * 4 + w] = word(chunk, w);
        }
      } else {
        const int token = value_token(t, j);
        const uint2 part = load_stream_half(tile + chunked_bytes(D, token, g * 8));
        v[j][0] = part.x;
        v[j][1] = part.y;
        if constexpr (kTail) {
          v[j][2] = load_stream_word(tile + chunked_bytes(D, token, 64 + g * 4));
        }
      }
    }
  }
  __device__ __forceinline__ void clear_value(int j) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) v[j][w] = 0;
  }
  static __device__ __forceinline__ int query_dim(int i, int t) {
    if (i < kGroups * 4) return (i >> 2) * 64 + t * 16 + (i & 3) * 4;
    return kGroups * 64 + t * 8 + (i & 1) * 4;
  }
  static __device__ __forceinline__ int dim_of(int i, int g) {
    if constexpr (kWide) return (i >> 3) * 128 + g * 16 + (i & 7) * 2;
    if (i < 4) return g * 8 + i * 2;
    return 64 + g * 4 + (i & 1) * 2;
  }
  template <int kOperands>
  __device__ __forceinline__ void dot(float (&even)[kOperands][4], float (&odd)[kOperands][4],
                                      const uint4 (&queries)[kOperands][kSteps / 2][32],
                                      int lane) const {
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      unsigned first[4];
      unsigned second[4];
#pragma unroll
      for (int n = 0; n < kOperands; ++n) {
        const uint4 q = load_shared(&queries[n][i / 2][lane]);
        if (n == 0) key_operand(first, i);
        mma_m16n8k16<Math>(even[n], first, q.x, q.y);
        if (n == 0) key_operand(second, i + 1);
        mma_m16n8k16<Math>(odd[n], second, q.z, q.w);
      }
    }
  }
  /// Converts V of step `i` to an operand.
  __device__ __forceinline__ void value_operand(unsigned (&a)[4], int i,
                                                unsigned seen = kAllSlots) const {
    // Places the bytes of two tokens side by side, for two adjacent dims.
    const unsigned order = (i & 1) == 0 ? 0x5140 : 0x7362;
    const unsigned near =
        __byte_perm(seen_word(v[0][i >> 1], seen, 0), seen_word(v[1][i >> 1], seen, 1), order);
    const unsigned far =
        __byte_perm(seen_word(v[2][i >> 1], seen, 2), seen_word(v[3][i >> 1], seen, 3), order);
    a[0] = widen(near & 0xffff);
    a[1] = widen(near >> 16);
    a[2] = widen(far & 0xffff);
    a[3] = widen(far >> 16);
  }

 private:
  /// Converts K of step `i` to an operand.
  __device__ __forceinline__ void key_operand(unsigned (&a)[4], int i) const {
    const bool tail = i >= kGroups * 4;
    const unsigned low = tail ? k[kGroups * 8 + (i & 1)] : k[(i >> 2) * 8 + (i & 3)];
    const unsigned high = tail ? k[kGroups * 8 + 2 + (i & 1)] : k[(i >> 2) * 8 + 4 + (i & 3)];
    a[0] = widen(low & 0xffff);
    a[1] = widen(high & 0xffff);
    a[2] = widen(low >> 16);
    a[3] = widen(high >> 16);
  }
  /// Converts two e4m3 to two f16.
  static __device__ __forceinline__ unsigned widen(unsigned pair) {
    const __half2_raw wide =
        __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
    return reinterpret_cast<const unsigned&>(wide);
  }
};

}  // namespace kvarena::kernels::decode
