#pragma once

/// @file
/// The rule that an unseen slot is never multiplied into an output, whatever it holds. The products
/// break it where some columns of a thread block see a token and others do not: these have a weight
/// of 0, and 0 times infinity or NaN is NaN. This can happen among the row's query tokens and at
/// the begin of a window. V of such slabs is looked at before it is multiplied; if it is not
/// finite, the slab is added token by token, and weights of 0 are left out. Included by
/// columns_consumer.cuh.

#include "kernels/columns/columns_config.cuh"

namespace kvarena::kernels::columns {

/// Adds 0 times the two elements of `word` to the two of `check`: it stays 0 while all are finite.
template <class T>
__device__ __forceinline__ void add_check(std::uint32_t& check, std::uint32_t word) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(check) : "r"(word), "r"(0));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(check) : "r"(word), "r"(0));
  }
}

/// Returns the two elements of a word.
template <class T>
__device__ __forceinline__ float2 unpack(std::uint32_t word) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(reinterpret_cast<const __half2&>(word));
  } else {
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000U));
  }
}

/// Waits for the threads of consumer warpgroup `warpgroup`, and returns whether one of them has
/// `is_true`. The compiler sees that the answer is the same in all lanes: products after a branch
/// on it need that.
__device__ __forceinline__ bool any_of_warpgroup(bool is_true, int warpgroup) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q, w;\nsetp.ne.b32 p, %1, 0;\nsetp.eq.b32 w, %2, 0;\n"
      "@w bar.red.or.pred q, %3, 128, p;\n@!w bar.red.or.pred q, %4, 128, p;\n"
      "selp.b32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(static_cast<int>(is_true)), "r"(warpgroup), "n"(kQueryBarrier), "n"(kQueryBarrier + 1)
      : "memory");
  return __reduce_max_sync(~0U, any) != 0;
}

/// Sets `to` to `from` if `is_it`. A choice of registers by the compiler would become an array in
/// local memory.
__device__ __forceinline__ void take_if(std::uint32_t& to, std::uint32_t from, bool is_it) {
  asm("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p mov.b32 %0, %1;\n}"
      : "+r"(to)
      : "r"(from), "r"(static_cast<int>(is_it)));
}

/// Returns whether this thread's part of V of a slab is finite. Thread `thread` of 128.
template <class C>
__device__ __forceinline__ bool is_finite_value(const char* slab, int thread) {
  std::uint32_t check = 0;
#pragma unroll 2
  for (int chunk = thread; chunk < C::kSlabBytes / kChunkBytes; chunk += 128) {
    const uint4 words = *reinterpret_cast<const uint4*>(slab + chunk * kChunkBytes);
    add_check<typename C::T>(check, words.x);
    add_check<typename C::T>(check, words.y);
    add_check<typename C::T>(check, words.z);
    add_check<typename C::T>(check, words.w);
  }
  return (check & 0x7FFF7FFFU) == 0;
}

/// Returns the weights of a token for the two columns of a thread; `weights` are the fragments of
/// the products. All lanes call it.
template <class C>
__device__ __forceinline__ float2 weights_of(const std::uint32_t (&weights)[C::kTiles][4],
                                             int token, int lane) {
  float weight[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    std::uint32_t pair = 0;
#pragma unroll
    for (int i = 0; i < C::kTiles * 2; ++i) {
      take_if(pair, weights[i / 2][i % 2 * 2 + h], token / kAtomTokens == i);
    }
    const float2 two =
        unpack<typename C::T>(__shfl_sync(~0U, pair, (lane & ~3) | (token >> 1 & 3)));
    weight[h] = (token & 1) != 0 ? two.y : two.x;
  }
  return make_float2(weight[0], weight[1]);
}

/// Adds the weighted values of a slab to the outputs of a thread's two columns, without those of
/// weight 0. Few dims at a time, because registers are few.
template <class C>
__device__ __forceinline__ void weigh_apart(float (&o)[C::kDim / 2],
                                            const std::uint32_t (&weights)[C::kTiles][4],
                                            const char* slab, int lane) {
  constexpr int kAtOnce = C::kDim % 32 == 0 ? 4 : 2;
#pragma unroll
  for (int first = 0; first < C::kDim / 8; first += kAtOnce) {
#pragma unroll 1
    for (int token = 0; token < C::kTokens; ++token) {
      const float2 weight = weights_of<C>(weights, token, lane);
      const char* const tile = slab + token / kTileTokens * C::kTileBytes;
#pragma unroll
      for (int i = first; i < first + kAtOnce; ++i) {
        const int dim = i * 8 + lane % 4 * 2;
        const float2 value = unpack<typename C::T>(*reinterpret_cast<const std::uint32_t*>(
            tile + chunked_bytes(C::kDim * 2, token % kTileTokens, dim * 2)));
        float* const to = o + i * 4;
        to[0] = weight.x != 0.0F ? fmaf(weight.x, value.x, to[0]) : to[0];
        to[1] = weight.x != 0.0F ? fmaf(weight.x, value.y, to[1]) : to[1];
        to[2] = weight.y != 0.0F ? fmaf(weight.y, value.x, to[2]) : to[2];
        to[3] = weight.y != 0.0F ? fmaf(weight.y, value.y, to[3]) : to[3];
      }
    }
  }
}

}  // namespace kvarena::kernels::columns
