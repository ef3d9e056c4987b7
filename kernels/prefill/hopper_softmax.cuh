#pragma once

/// @file
/// The softmax of the Hopper kernel of prefill.h: the masks of its rows, and their ends.

#include "kernels/common/hopper_softmax.cuh"

namespace kvarena::kernels {

/// What a thread knows of its two rows.
struct SoftmaxRows {
  float top[2];   ///< maximum that weights are taken against, before the scale
  float sum[2];   ///< of this thread's weights
  float keep[2];  ///< factor of earlier outputs after the last tile
  int begin[2];   ///< tokens begin .. end - 1 are seen
  int end[2];
};

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
  if constexpr (kIsMasked) {
#pragma unroll
    for (int n = 0; n < kCount / 4; ++n) mask_columns<kHasWindow>(s, n, rows, first);
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    weigh_row<Math, kIsMasked>(s, h, rows.top[h], rows.sum[h], rows.keep[h], scale[h]);
  }
}

/// weigh_tile for an item's first tile, while no product is in flight.
template <class Math, bool kHasWindow, int kCount>
__device__ __forceinline__ void weigh_first_tile(float (&s)[kCount], SoftmaxRows& rows,
                                                 const float (&scale)[2], int first, int t) {
  const int seen = __shfl_sync(~0U, rows.end[1], 31) - (first - 2 * t);
  const int full = __shfl_sync(~0U, rows.end[0], 0) - (first - 2 * t);
  weigh_first<Math>(s, rows.top, rows.sum, scale, seen, [&](int chunk) {
    if (chunk * 32 + 32 <= full && !kHasWindow) return;
#pragma unroll
    for (int n = chunk * 4; n < chunk * 4 + 4 && n < kCount / 4; ++n) {
      mask_columns<kHasWindow>(s, n, rows, first);
    }
  });
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
