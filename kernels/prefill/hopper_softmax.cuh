#pragma once

/// @file
/// Online softmax (Milakov and Gimelshein, 2018) of the Hopper kernels, in base 2, on accumulators
/// of wgmma.cuh: a thread has columns 8 * n + 2 * t and + 1 of rows g and g + 8. The maximum that
/// is subtracted may be up to 2^8 too small, so that outputs seldom need another scale; sums are
/// taken against the same maximum, so the result is exact.

#include "kernels/common/mma.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace kvarena::kernels {

/// Weights are multiplied by two to this power. In f16, weights down to 2^-21 of the largest then
/// keep all their bits.
template <class Math>
inline constexpr float kWeightBias = 0.0F;
template <>
inline constexpr float kWeightBias<__half> = 7.0F;

/// The bits of the growth that a maximum may miss.
inline constexpr float kLazyBits = 8.0F;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(x));
  return y;
}

/// What a thread knows of its two rows.
struct SoftmaxRows {
  float top[2];   ///< maximum that weights are taken against, before the scale
  float sum[2];   ///< of this thread's weights
  float keep[2];  ///< factor of earlier outputs after the last tile
  int begin[2];   ///< tokens begin .. end - 1 are seen
  int end[2];
};

/// Returns a logit with a soft cap: cap * tanh(x), in base 2. `slope` times a dot product is 2
/// log2(e) x.
__device__ __forceinline__ float cap_logit(float dot, float cap_log2, float slope) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(dot * slope));
  return fmaf(-2.0F * cap_log2, inverse_fast(1.0F + y), cap_log2);
}

/// Makes logits of columns 8n .. 8n + 7 that a row does not see minus infinity. `first` is the
/// token of this thread's column 0.
template <bool kHasWindow, int kCount>
__device__ __forceinline__ void mask_columns(float (&s)[kCount], int n, const SoftmaxRows& rows,
                                             int first) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int column = n * 8 + (j & 1);
    const int h = j >> 1;
    if (column >= rows.end[h] - first) s[n * 4 + j] = -INFINITY;
    if constexpr (kHasWindow) {
      if (column < rows.begin[h] - first) s[n * 4 + j] = -INFINITY;
    }
  }
}

/// Turns logits into weights and updates `rows`. `scale` makes logits of a row those of base 2.
/// `first` is the token of this thread's column 0.
template <class Math, bool kIsMasked, bool kHasWindow, int kCount>
__device__ __forceinline__ void weigh_tile(float (&s)[kCount], SoftmaxRows& rows,
                                           const float (&scale)[2], int first) {
  constexpr int kColumns8 = kCount / 4;
  if constexpr (kIsMasked) {
#pragma unroll
    for (int n = 0; n < kColumns8; ++n) mask_columns<kHasWindow>(s, n, rows, first);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = fmaxf(s[2 * h], s[2 * h + 1]);
    float other = fmaxf(s[4 + 2 * h], s[4 + 2 * h + 1]);
#pragma unroll
    for (int n = 2; n < kColumns8; n += 2) {
      most = fmaxf(most, fmaxf(s[n * 4 + 2 * h], s[n * 4 + 2 * h + 1]));
      other = fmaxf(other, fmaxf(s[n * 4 + 4 + 2 * h], s[n * 4 + 5 + 2 * h]));
    }
    most = fmaxf(most, other);
    most = fmaxf(most, __shfl_xor_sync(~0U, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0U, most, 2));
    const float old = rows.top[h];
    // Two minus infinities give NaN, which is not larger.
    rows.top[h] = (most - old) * scale[h] > kLazyBits ? most : old;
    const float top = kIsMasked && rows.top[h] == -INFINITY ? 0.0F : rows.top[h] * scale[h];
    const float base = top - kWeightBias<Math>;
    rows.keep[h] = exp2_fast(fmaf(old, scale[h], -top));
    float sum0 = 0.0F;
    float sum1 = 0.0F;
#pragma unroll
    for (int n = 0; n < kColumns8; ++n) {
      s[n * 4 + 2 * h] = exp2_fast(fmaf(s[n * 4 + 2 * h], scale[h], -base));
      s[n * 4 + 2 * h + 1] = exp2_fast(fmaf(s[n * 4 + 2 * h + 1], scale[h], -base));
      sum0 += s[n * 4 + 2 * h];
      sum1 += s[n * 4 + 2 * h + 1];
    }
    const float sum = sum0 + sum1;
    rows.sum[h] = rows.sum[h] * rows.keep[h] + sum;
  }
}

/// weigh_tile for an item's first tile, while no product is in flight: chunks of 32 columns that no
/// row of the warp sees are left out.
template <class Math, bool kHasWindow, int kCount>
__device__ __forceinline__ void weigh_first_tile(float (&s)[kCount], SoftmaxRows& rows,
                                                 const float (&scale)[2], int first, int t) {
  constexpr int kColumns8 = kCount / 4;
  constexpr int kChunks = (kColumns8 + 3) / 4;
  const int seen = __shfl_sync(~0U, rows.end[1], 31) - (first - 2 * t);
  const int full = __shfl_sync(~0U, rows.end[0], 0) - (first - 2 * t);
  float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int q = 0; q < kChunks; ++q) {
    if (q * 32 >= seen) continue;
    if (q * 32 + 32 > full || kHasWindow) {
#pragma unroll
      for (int n = q * 4; n < q * 4 + 4 && n < kColumns8; ++n) {
        mask_columns<kHasWindow>(s, n, rows, first);
      }
    }
#pragma unroll
    for (int n = q * 4; n < q * 4 + 4 && n < kColumns8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = fmaxf(most[h], fmaxf(s[n * 4 + 2 * h], s[n * 4 + 2 * h + 1]));
      }
    }
  }
  float base[2];
  float sum[2] = {0.0F, 0.0F};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    most[h] = fmaxf(most[h], __shfl_xor_sync(~0U, most[h], 1));
    most[h] = fmaxf(most[h], __shfl_xor_sync(~0U, most[h], 2));
    rows.top[h] = most[h];
    base[h] = (most[h] == -INFINITY ? 0.0F : most[h] * scale[h]) - kWeightBias<Math>;
  }
#pragma unroll
  for (int q = 0; q < kChunks; ++q) {
    if (q * 32 >= seen) {
#pragma unroll
      for (int i = q * 16; i < q * 16 + 16 && i < kCount; ++i) s[i] = 0.0F;
      continue;
    }
#pragma unroll
    for (int n = q * 4; n < q * 4 + 4 && n < kColumns8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[n * 4 + j] = exp2_fast(fmaf(s[n * 4 + j], scale[j >> 1], -base[j >> 1]));
        sum[j >> 1] += s[n * 4 + j];
      }
    }
  }
  rows.sum[0] = sum[0];
  rows.sum[1] = sum[1];
}

/// The end of a row: the factor of its outputs, and its natural log-sum-exp.
struct RowEnd {
  float share;
  float lse;
};

/// Ends a row whose weights add up to `sum` against the maximum `top` (base 2, with the scale). A
/// sink is taken against the larger of the two, so that one far above every logit overflows
/// nothing. A row that has seen nothing has no sink.
template <class Math>
__device__ __forceinline__ RowEnd end_row(float top, float sum, const float* sink) {
  constexpr float kLog2e = 1.4426950408889634F;
  constexpr float kLn2 = 0.6931471805599453F;
  const bool is_empty = sum == 0.0F;
  float shrink = 1.0F;
  if (sink != nullptr) {
    const float other = *sink * kLog2e;
    const float most = fmaxf(top, other);
    shrink = exp2_fast(top - most);
    sum = sum * shrink + exp2_fast(other - most + kWeightBias<Math>);
    top = most;
  }
  const float lse = (top - kWeightBias<Math> + log2_fast(sum)) * kLn2;
  return {is_empty ? 0.0F : shrink * inverse_fast(sum), is_empty ? -INFINITY : lse};
}

}  // namespace kvarena::kernels
