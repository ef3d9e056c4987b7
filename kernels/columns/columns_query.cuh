#pragma once

/// @file
/// The queries and outputs of the columns kernel: between global memory, where a lane moves 16
/// bytes, and the fragments of the products, where it has pairs of neighbouring dims. Lane t of a
/// quad moves chunk t of 64 bytes; a transposition of words inside the quad leads from one form to
/// the other.

#include "kernels/columns/columns_config.cuh"
#include "kernels/columns/columns_softmax.cuh"

namespace kvarena::kernels::columns {

/// Exchanges word i of lane t of each quad with word t of lane i, in the first kUsed groups of four
/// words. Two rounds over all groups, so that the shuffles overlap.
template <int kGroups, int kUsed = kGroups>
__device__ __forceinline__ void transpose_quads(std::uint32_t (&a)[kGroups][4], int t) {
  const bool odd = (t & 1) != 0;
  const bool high = (t & 2) != 0;
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

/// Loads 16 bytes, or zeros unless `is_in`; without a branch. This kernel does not write them.
__device__ __forceinline__ void load_if(std::uint32_t (&to)[4], const void* from, bool is_in) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; "
      "mov.b32 %3, 0;\n@p ld.global.nc.L1::no_allocate.v4.b32 {%0,%1,%2,%3}, [%4];\n}"
      : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
      : "l"(from), "r"(static_cast<int>(is_in)));
}
/// Stores 16 or 4 bytes if `is_in`, without a branch.
__device__ __forceinline__ void store_if(void* to, const std::uint32_t (&from)[4], bool is_in) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1,%2,%3,%4};\n}" ::"l"(
          to),
      "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(static_cast<int>(is_in))
      : "memory");
}
__device__ __forceinline__ void store_if(void* to, std::uint32_t from, bool is_in) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.b32 [%0], %1;\n}" ::"l"(to),
               "r"(from), "r"(static_cast<int>(is_in))
               : "memory");
}

/// The queries of a thread's two columns: first 16-byte chunks as they lie (chunk 4 j + t of column
/// h in [h * (D / 32) + j]), after arrange() fragments. Where D is no multiple of 32, the last 16
/// dims are a fragment from the start.
template <class C>
struct Query {
  static constexpr int kPieces = C::kDim / 32;
  static constexpr bool kHasTail = C::kDim % 32 != 0;
  std::uint32_t words[C::kDim / 16][4];

  /// Loads columns `column` and column + 8 of a segment; those past its last are zeros.
  __device__ __forceinline__ void load(const Launch& launch, const ColumnsSegment& segment,
                                       int column, int t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = column + 8 * h;
      const bool is_in = at < segment.columns;
      Place place = place_of(launch, segment.q_begin, segment.head, at);
      if (C::kHasTiles && segment.q_len == 0 && is_in)
        place.token = __ldg(launch.tile_tokens + place.token);
      const std::int64_t first = element_of<C>(launch, place);
      const char* const row = static_cast<const char*>(launch.params.q) + first * 2;
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        load_if(words[h * kPieces + j], row + t * 16 + j * 64, is_in);
      }
      if constexpr (kHasTail) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const char* const from = row + (C::kDim - 16 + 8 * e + 2 * t) * 2;
          words[C::kDim / 16 - 1][2 * h + e] =
              is_in ? __ldg(reinterpret_cast<const std::uint32_t*>(from)) : 0;
        }
      }
    }
  }
  __device__ __forceinline__ void arrange(int t) {
    transpose_quads<C::kDim / 16, 2 * kPieces>(words, t);
  }
  /// Copies fragment `step` (16 dims) in the order of the products' operand.
  __device__ __forceinline__ void fragment(std::uint32_t (&a)[4], int step) const {
    const int j = step / 2;
    const int e = step % 2;
    const bool is_tail = kHasTail && step == C::kDim / 16 - 1;
    a[0] = is_tail ? words[C::kDim / 16 - 1][0] : words[j][2 * e];
    a[1] = is_tail ? words[C::kDim / 16 - 1][2] : words[kPieces + j][2 * e];
    a[2] = is_tail ? words[C::kDim / 16 - 1][1] : words[j][2 * e + 1];
    a[3] = is_tail ? words[C::kDim / 16 - 1][3] : words[kPieces + j][2 * e + 1];
  }
  /// Stores the chunks as an operand in shared memory, in the order of the pool. `to` is the place
  /// of this warp's 16 columns.
  __device__ __forceinline__ void store_operand(char* to, int g, int t) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const std::uint32_t(&y)[4] = words[h * kPieces + j];
        *reinterpret_cast<uint4*>(to + h * C::kGroupBytes + j * 512 + g * 64 +
                                  ((t ^ (g >> 1 & 3)) << 4)) = make_uint4(y[0], y[1], y[2], y[3]);
      }
    }
  }
};

/// Normalises and writes column `h` of a thread: the output and the log-sum-exp. Every lane of the
/// quad calls it; nothing is written unless `is_in`.
template <class C>
__device__ __forceinline__ void write_column(const Launch& launch, const Place& place, bool is_in,
                                             const float (&o)[C::kDim / 2], int h, float maximum,
                                             float sum, float scale, int t) {
  using T = typename C::T;
  const ColumnsParams& p = launch.params;
  const float* const sink = p.sinks != nullptr ? p.sinks + (is_in ? place.head : 0) : nullptr;
  if (sink != nullptr) sum = with_sink<C>(sum, maximum, *sink, scale);
  const float factor = sum > 0.0F ? reciprocal_fast(sum) : 0.0F;
  T* const to = static_cast<T*>(p.out) + element_of<C>(launch, place);
  constexpr int kPieces = C::kDim / 32;
  std::uint32_t words[kPieces][4];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = (i * 4 + j) * 4 + 2 * h;
      words[i][j] = pack<T>(o[at] * factor, o[at + 1] * factor);
    }
  }
  transpose_quads(words, t);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) store_if(to + i * 32 + t * 8, words[i], is_in);
#pragma unroll
  for (int i = kPieces * 4; i < C::kDim / 8; ++i) {  // where D is no multiple of 32
    const int at = i * 4 + 2 * h;
    store_if(to + i * 8 + t * 2, pack<T>(o[at] * factor, o[at + 1] * factor), is_in);
  }
  if (p.lse != nullptr) {
    const float lse = log_sum_exp<C>(sum, maximum, scale, sink);
    store_if(p.lse + place.token * p.limits.num_q_heads + place.head, __float_as_uint(lse),
             is_in && t == 0);
  }
}

}  // namespace kvarena::kernels::columns
