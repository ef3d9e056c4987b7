#pragma once

/// @file
/// The tensor core kernel of prefill.h. K and V of one byte are converted when they are loaded. A
/// thread block has kRows query tokens of one query head, 16
/// a warp; K and V come through shared memory kTile tokens at a time, put in rows whatever their
/// order in the pool. Online softmax (Milakov and Gimelshein, 2018) in base 2; P is rounded to T
/// for the second product, sums are of the unrounded values.

#include "kernels/common/mma.cuh"
#include "kernels/common/vector_io.cuh"
#include "kernels/prefill/prefill_rows.cuh"

#include "kvarena/base/tile_order.hpp"

#include <cuda_fp8.h>

namespace kvarena::kernels {

/// Tile sizes and shared memory of one head_dim.
template <int D>
struct PrefillTile {
  static constexpr int kWarps = 4;
  static constexpr int kRows = 16 * kWarps;
  static constexpr int kTile = 32;
  static constexpr int kStride = D + 8;  ///< elements; eight rows fall into different banks
  static_assert(kRows <= kStride, "add_values_apart keeps weights where K was");
  static constexpr int kBytes = (kRows + 2 * kTile) * kStride * 2;
};

/// Weights of f16 are 2^kWeightBits times what they are against the maximum, so that small ones do
/// not vanish: f16 has nothing below 2^-24.
template <class T>
inline constexpr int kWeightBits = std::is_same_v<T, __half> ? 15 : 0;

/// Returns whether one of two 16-bit numbers is infinite or NaN.
template <class T>
__device__ inline bool has_special(unsigned pair) {
  constexpr unsigned kExponent = std::is_same_v<T, __half> ? 0x7c00U : 0x7f80U;
  return (pair & kExponent) == kExponent || (pair >> 16 & kExponent) == kExponent;
}

/// Loads eight neighbouring elements of K or V and returns them as elements of T. Every e4m3 number
/// is one of bf16 and of f16.
template <class T, class S>
__device__ inline uint4 load_elements(const std::byte* from) {
  if constexpr (std::is_same_v<T, S>) {
    return load_once(from);
  } else {
    const uint2 packed = *reinterpret_cast<const uint2*>(from);
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto pair =
          static_cast<__nv_fp8x2_storage_t>((i < 2 ? packed.x : packed.y) >> i % 2 * 16);
      const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
      const float2 values = __half22float2(*reinterpret_cast<const __half2*>(&raw));
      words[i] = pack_pair<T>(values.x, values.y);
    }
    return {words[0], words[1], words[2], words[3]};
  }
}

/// A thread block's shared memory and state, for q and out of type T and K and V of type S.
template <class T, class S, int D>
struct PrefillBlock {
  using Tile = PrefillTile<D>;
  static constexpr int kStride = Tile::kStride;
  static constexpr int kChunks = D / 8;

  const PrefillParams& p;
  PrefillRow row;
  int head;   ///< query head
  int first;  ///< query token of the row in this block's first row
  float key_scale;
  float value_scale;
  T* q;  ///< [kRows, kStride]
  T* k;  ///< [kTile, kStride]
  T* v;  ///< [kTile, kStride]
  float o[D / 8][4];
  float top[2];  ///< running maximum of rows g and g + 8, base 2
  float sum[2];  ///< running sum, this thread's columns only

  __device__ void load_queries() {
    for (int i = threadIdx.x; i < Tile::kRows * kChunks; i += blockDim.x) {
      const int r = i / kChunks;
      const int d = i % kChunks * 8;
      uint4 x{};
      if (first + r < row.count) {
        const std::int64_t token = row.first_q + first + r;
        x = load_once(static_cast<const char*>(p.attention.q) + token * p.attention.q_token_stride +
                      (head * D + d) * 2);
      }
      store(q + r * kStride + d, x);
    }
  }

  /// Tokens `from` .. `from + kTile - 1` of K and V; zeros outside `seen`, whatever lies there.
  /// Returns whether a value that this thread loaded is infinite or NaN.
  __device__ bool load_tile(int from, const Visible& seen) {
    const AttentionParams& a = p.attention;
    bool is_special = false;
    const int kv_head = head / (a.num_q_heads / a.kv.key.num_heads);
    for (int i = threadIdx.x; i < Tile::kTile * kChunks; i += blockDim.x) {
      const int token = from + i / kChunks;
      const int d = i % kChunks * 8;
      uint4 key{};
      uint4 value{};
      if (token >= seen.begin && token < seen.end) {
        const std::int64_t block = a.batch.tables.block(row.row, token / a.kv.block_size).value;
        const int at = token % a.kv.block_size;
        constexpr int kBytes = sizeof(S);
        key = load_elements<T, S>(a.kv.key.base +
                                  element_offset(a.kv.key, kBytes, block, kv_head, at, d));
        value = load_elements<T, S>(a.kv.value.base +
                                    element_offset(a.kv.value, kBytes, block, kv_head, at, d));
      }
      store(k + i / kChunks * kStride + d, key);
      store(v + i / kChunks * kStride + d, value);
      for (const unsigned pair : {value.x, value.y, value.z, value.w}) {
        is_special = is_special || has_special<T>(pair);
      }
    }
    return is_special;
  }

  /// s[n] = logits (base 2) of this warp's rows and tokens from + 8n .., minus infinity where
  /// unseen.
  __device__ void multiply_keys(float (&s)[Tile::kTile / 8][4], int from) {
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (auto& tile : s) tile[0] = tile[1] = tile[2] = tile[3] = 0.0F;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
      unsigned a[4];
      load_matrices(a, q + (warp * 16 + lane % 16) * kStride + d + lane / 16 * 8);
#pragma unroll
      for (int n = 0; n < Tile::kTile / 8; n += 2) {
        unsigned b[4];
        load_matrices(b, k + (n * 8 + lane % 8 + lane / 16 * 8) * kStride + d + lane / 8 % 2 * 8);
        mma_m16n8k16<T>(s[n], a, b[0], b[1]);
        mma_m16n8k16<T>(s[n + 1], a, b[2], b[3]);
      }
    }
    constexpr float kLog2e = 1.4426950408889634F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = first + warp * 16 + lane / 4 + i / 2 * 8;
      const Visible seen = visible_to(p.attention, row, r);
#pragma unroll
      for (int n = 0; n < Tile::kTile / 8; ++n) {
        const int token = from + n * 8 + lane % 4 * 2 + i % 2;
        const bool is_seen = r < row.count && token >= seen.begin && token < seen.end;
        s[n][i] = is_seen ? logit_of(p.attention, s[n][i] * key_scale) * kLog2e : -INFINITY;
      }
    }
  }

  /// Turns logits into weights against the new maximum and scales what there was before.
  __device__ void weigh(float (&s)[Tile::kTile / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = top[half];
#pragma unroll
      for (const auto& tile : s) most = fmaxf(most, fmaxf(tile[2 * half], tile[2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0U, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0U, most, 2));
      // A row that has seen nothing yet has no maximum to subtract.
      const float base = most == -INFINITY ? 0.0F : most;
      const float shrink = exp2f(top[half] - base);
      top[half] = most;
      sum[half] *= shrink;
#pragma unroll
      for (auto& tile : s) {
        tile[2 * half] = exp2f(tile[2 * half] - base + kWeightBits<T>);
        tile[2 * half + 1] = exp2f(tile[2 * half + 1] - base + kWeightBits<T>);
        sum[half] += tile[2 * half] + tile[2 * half + 1];
      }
#pragma unroll
      for (auto& part : o) {
        part[2 * half] *= shrink;
        part[2 * half + 1] *= shrink;
      }
    }
  }

  /// o += weights * V.
  __device__ void add_values(const float (&s)[Tile::kTile / 8][4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < Tile::kTile / 8; n += 2) {
      const unsigned a[4] = {pack_pair<T>(s[n][0], s[n][1]), pack_pair<T>(s[n][2], s[n][3]),
                             pack_pair<T>(s[n + 1][0], s[n + 1][1]),
                             pack_pair<T>(s[n + 1][2], s[n + 1][3])};
#pragma unroll
      for (int d = 0; d < D; d += 16) {
        unsigned b[4];
        load_matrices_transposed(b, v + (n * 8 + lane % 16) * kStride + d + lane / 16 * 8);
        mma_m16n8k16<T>(o[d / 8], a, b[0], b[1]);
        mma_m16n8k16<T>(o[d / 8 + 1], a, b[2], b[3]);
      }
    }
  }

  /// Returns whether some row does not see some token of a tile that another one sees.
  __device__ bool has_unseen(int from) const {
    const int last = min(first + Tile::kRows, row.count) - 1;
    return from + Tile::kTile > visible_to(p.attention, row, first).end ||
           from < visible_to(p.attention, row, last).begin;
  }

  /// Does the same for a tile with infinite or NaN values. A product of matrices would carry them
  /// to the rows that do not see them, because 0 times NaN is NaN.
  __device__ void add_values_apart(const float (&s)[Tile::kTile / 8][4], int from) {
    const int lane = threadIdx.x % 32;
    const int block_row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
    T* weights = k;   // [kRows, kTile]
    __syncthreads();  // every warp has multiplied K
#pragma unroll
    for (int n = 0; n < Tile::kTile / 8; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        T* to = weights + (block_row + half * 8) * Tile::kTile + n * 8 + lane % 4 * 2;
        *reinterpret_cast<unsigned*>(to) = pack_pair<T>(s[n][2 * half], s[n][2 * half + 1]);
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int token = 0; token < Tile::kTile; ++token) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = first + block_row + half * 8;
        const Visible seen = visible_to(p.attention, row, r);
        if (r >= row.count || from + token < seen.begin || from + token >= seen.end) continue;
        const float weight =
            static_cast<float>(weights[(block_row + half * 8) * Tile::kTile + token]);
#pragma unroll
        for (int i = 0; i < D / 8; ++i) {
          const T* values = v + token * kStride + i * 8 + lane % 4 * 2;
          o[i][2 * half] += weight * static_cast<float>(values[0]);
          o[i][2 * half + 1] += weight * static_cast<float>(values[1]);
        }
      }
    }
  }

  __device__ void write_outputs() {
    constexpr float kLn2 = 0.6931471805599453F;
    constexpr float kUnit = 1.0F / (1 << kWeightBits<T>);  // of weights
    const AttentionParams& a = p.attention;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0U, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0U, sum[half], 2);
      const int r = first + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4 + half * 8;
      if (r >= row.count) continue;
      const std::int64_t token = row.first_q + r;
      char* const to = static_cast<char*>(a.out) + token * a.out_token_stride + head * (D * 2);
      const SoftmaxEnd end = end_softmax(a, head, top[half] * kLn2, sum[half] * kUnit);
      const float share = end.share * kUnit * value_scale;
#pragma unroll
      for (int i = 0; i < D / 8; ++i) {
        *reinterpret_cast<unsigned*>(to + (i * 8 + lane % 4 * 2) * 2) =
            pack_pair<T>(o[i][2 * half] * share, o[i][2 * half + 1] * share);
      }
      if (a.lse != nullptr && lane % 4 == 0) a.lse[token * a.num_q_heads + head] = end.lse;
    }
  }
};

template <class T, class S, int D>
__global__ void __launch_bounds__(PrefillTile<D>::kWarps * 32)
    prefill_tensor_cores(const __grid_constant__ PrefillParams p) {
  using Tile = PrefillTile<D>;
  extern __shared__ uint4 shared[];
  const AttentionParams& a = p.attention;
  const PrefillRow row = load_row(p, row_of_piece(a, blockIdx.x, Tile::kRows));
  const auto first =
      static_cast<int>((blockIdx.x - first_piece(p.attention, row, Tile::kRows)) * Tile::kRows);
  if (first >= row.count) return;
  T* q = reinterpret_cast<T*>(shared);
  T* k = q + Tile::kRows * Tile::kStride;
  const auto head = static_cast<int>(blockIdx.y);
  const auto scale_of = [&](const float* scales) {
    if (scales == nullptr) return 1.0F;
    return scales[a.scales.per_head ? head / (a.num_q_heads / a.kv.key.num_heads) : 0];
  };
  PrefillBlock<T, S, D> block{p,
                              row,
                              head,
                              first,
                              scale_of(a.scales.key),
                              scale_of(a.scales.value),
                              q,
                              k,
                              k + Tile::kTile * Tile::kStride,
                              {},
                              {-INFINITY, -INFINITY},
                              {}};
  const int last = min(first + Tile::kRows, row.count) - 1;
  const Visible seen{visible_to(a, row, first).begin, visible_to(a, row, last).end};

  block.load_queries();
  for (int from = seen.begin / Tile::kTile * Tile::kTile; from < seen.end; from += Tile::kTile) {
    const bool is_special = block.load_tile(from, seen) && block.has_unseen(from);
    const bool is_apart = __syncthreads_or(is_special ? 1 : 0) != 0;
    float s[Tile::kTile / 8][4];
    block.multiply_keys(s, from);
    block.weigh(s);
    if (is_apart) {
      block.add_values_apart(s, from);
    } else {
      block.add_values(s);
    }
    __syncthreads();
  }
  block.write_outputs();
}

}  // namespace kvarena::kernels
