#pragma once

/// @file
/// The rule that an unseen slot is never multiplied into an output, whatever it holds, where the
/// products of the Hopper kernel break it: they give a token that some rows of an item see and
/// others do not a weight of 0 for the others, and 0 times infinity or NaN is NaN. Outputs that are
/// not finite show it. A warp then looks for the cause, and computes the rows that do not see it
/// again, one by one. All branches depend on values that are the same in all lanes, in a way that
/// the compiler can see: otherwise it takes the main loop for divergent and keeps its addresses out
/// of uniform registers. Included by hopper_consumer.cuh.

#include "kernels/common/hopper_operands.cuh"
#include "kernels/common/vector_io.cuh"
#include "kernels/prefill/hopper_softmax.cuh"
#include "kernels/prefill/hopper_tile.cuh"

#include <climits>

namespace kvarena::kernels::prefill {

/// Adds 0 times the two elements of `word` to the two of `check`: it stays 0 while all are finite.
template <class T>
__device__ __forceinline__ void add_check(std::uint32_t& check, std::uint32_t word) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(check) : "r"(word), "r"(0));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(check) : "r"(word), "r"(0));
  }
}

/// Returns whether all elements of a check were finite.
__device__ __forceinline__ bool is_finite(std::uint32_t check) {
  return (check & 0x7FFF7FFFU) == 0;
}

/// Returns whether the stored elements of a word are finite.
template <class S>
__device__ __forceinline__ bool has_finite(std::uint32_t word) {
  if constexpr (sizeof(S) == 1) {
    return __vcmpeq4(word & 0x7F7F7F7FU, 0x7F7F7F7FU) == 0;
  } else {
    std::uint32_t check = 0;
    add_check<S>(check, word);
    return is_finite(check);
  }
}

/// Loads two neighbouring stored elements.
template <class S>
__device__ __forceinline__ float2 load_pair(const char* from) {
  if constexpr (std::is_same_v<S, __half>) {
    return __half22float2(*reinterpret_cast<const __half2*>(from));
  } else if constexpr (std::is_same_v<S, __nv_bfloat16>) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(from));
  } else {
    const auto pair = *reinterpret_cast<const __nv_fp8x2_storage_t*>(from);
    return __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
  }
}

/// Returns `x`, which is the same in all lanes, so that the compiler knows that it is.
__device__ __forceinline__ int same_in_warp(int x) { return __reduce_max_sync(~0U, x); }

/// Tokens of which V is not finite: the first and the last.
struct NotFinite {
  int first = INT_MAX;
  int last = -1;
};

/// The work of a warp on an item.
template <class Tile>
struct Repair {
  using T = typename Tile::T;
  using S = typename Tile::S;
  static constexpr int D = Tile::D;
  static constexpr int kTokenBytes = D * static_cast<int>(sizeof(S));
  static constexpr int kPairs = (D / 2 + 31) / 32;  ///< of elements in a lane

  const PrefillParams& p;
  const HopperLaunch& launch;
  const KeptItem& item;
  int lane;

  /// Returns byte `byte` of a token in K or V.
  __device__ const char* element(const PlaneView& plane, int token, int byte) const {
    const int block = launch.tiles_per_block.divide(token / kTileTokens);
    const BlockId entry = p.attention.batch.tables.entries[item.table + block];
    const int at = token - block * p.attention.kv.block_size;
    return reinterpret_cast<const char*>(plane.base) + entry.value * plane.block_stride +
           item.head * plane.head_stride +
           (Tile::kReadsRows ? at * kTokenBytes + byte : chunked_bytes(kTokenBytes, at, byte));
  }

  /// Looks at V of tokens begin .. end - 1.
  __device__ __forceinline__ void find(NotFinite& found, int begin, int end) const {
    constexpr int kPieces = kTokenBytes / kChunkBytes;
    const int count = same_in_warp((end - begin) * kPieces);
#pragma unroll 1
    for (int base = 0; base < count; base += 32) {
      const int i = min(base + lane, count - 1);
      const int token = begin + i / kPieces;
      const uint4 piece = *reinterpret_cast<const uint4*>(
          element(p.attention.kv.value, token, i % kPieces * kChunkBytes));
      const bool is_bad = !has_finite<S>(piece.x) | !has_finite<S>(piece.y) |
                          !has_finite<S>(piece.z) | !has_finite<S>(piece.w);
      found.first = is_bad ? min(found.first, token) : found.first;
      found.last = is_bad ? max(found.last, token) : found.last;
    }
    found.first = __reduce_min_sync(~0U, found.first);
    found.last = __reduce_max_sync(~0U, found.last);
  }

  /// Returns a logit in base 2 from this lane's part of a dot product. `scale` is cap_slope with a
  /// soft cap, otherwise scale_log2; both with the scale of K.
  __device__ float logit(float part, float scale) const {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      part += __shfl_xor_sync(~0U, part, distance);
    }
    if constexpr (!Tile::kHasCap) return part * scale;
    return cap_logit(part, launch.cap_log2, scale);
  }

  /// Computes the output at `place` again from tokens begin .. end - 1. Stops when nothing of it
  /// can become finite. A lane has pairs of dims lane, lane + 32, ...; past the last, the last
  /// again.
  __device__ __forceinline__ void attend(const RowPlace& place, int begin, int end, float scale,
                                         float value_scale, const float* sink) const {
    const AttentionParams& a = p.attention;
    const char* const query = static_cast<const char*>(a.q) + place.bytes(a.q_token_stride, D * 2);
    float2 q[kPairs];
    float2 o[kPairs] = {};
    int pair[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      pair[i] = min(lane + 32 * i, D / 2 - 1);
      q[i] = load_pair<T>(query + pair[i] * 4);
      q[i].x = lane + 32 * i < D / 2 ? q[i].x : 0.0F;
      q[i].y = lane + 32 * i < D / 2 ? q[i].y : 0.0F;
    }
    float top = -INFINITY;
    float sum = 0.0F;
#pragma unroll 1
    for (int token = begin; token < end; ++token) {
      float part = 0.0F;
      float2 v[kPairs];
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int byte = pair[i] * 2 * static_cast<int>(sizeof(S));
        const float2 k = load_pair<S>(element(p.attention.kv.key, token, byte));
        v[i] = load_pair<S>(element(p.attention.kv.value, token, byte));
        part += lane + 32 * i < D / 2 ? q[i].x * k.x + q[i].y * k.y : 0.0F;
      }
      const float x = logit(part, scale);
      const float most = fmaxf(top, x);
      const float shrink = exp2_fast(top - most);
      const float weight = exp2_fast(x - most);
      top = most;
      sum = sum * shrink + weight;
      bool is_lost = true;
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        o[i].x = o[i].x * shrink + weight * v[i].x;
        o[i].y = o[i].y * shrink + weight * v[i].y;
        is_lost = is_lost & isnan(o[i].x) & isnan(o[i].y);
      }
      if (__all_sync(~0U, is_lost)) break;
    }
    const float share = end_row<__nv_bfloat16>(top, sum, sink).share * value_scale;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      store_word(static_cast<char*>(a.out) + place.bytes(a.out_token_stride, D * 2) + pair[i] * 4,
                 pack_pair<T>(o[i].x * share, o[i].y * share), lane + 32 * i < D / 2);
    }
  }

  /// Computes those of the warp's rows again that have outputs which are not finite and do not see
  /// every token of which V is not finite. `row` is the packed row of this thread's first row,
  /// whose outputs and those of the row eight further are in `is_bad`.
  __device__ __forceinline__ void run(int row, const bool (&is_bad)[2], float scale,
                                      float value_scale) const {
    const AttentionParams& a = p.attention;
    const int window = Tile::kHasWindow ? a.window_tokens : 0;
    const int first_row = __reduce_min_sync(~0U, row);
    NotFinite found;
    find(found, max(visible_end(item, launch, first_row), item.from), item.end);
    if (window > 0) {
      const int end = visible_end(item, launch, first_row + 15) - window;
      find(found, item.from, min(end, item.end));
    }
    const unsigned bad[2] = {__ballot_sync(~0U, is_bad[0]), __ballot_sync(~0U, is_bad[1])};
    __syncwarp();  // outputs that were written before come first
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      if (((i < 8 ? bad[0] : bad[1]) >> (i % 8 * 4) & 0xF) == 0) continue;
      const int end = same_in_warp(visible_end(item, launch, first_row + i));
      const int begin = window > 0 ? max(end - window, 0) : 0;
      if (found.first >= begin && found.last < end) continue;
      const RowPlace place = place_of(item, launch, first_row + i);
      const float* sink = a.sinks == nullptr ? nullptr : a.sinks + place.head;
      attend(place, begin, end, scale, value_scale, sink);
    }
  }
};

}  // namespace kvarena::kernels::prefill
