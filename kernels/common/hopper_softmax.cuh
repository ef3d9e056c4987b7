#pragma once

/// @file
/// Online softmax (Milakov and Gimelshein, 2018) of the Hopper kernels, in base 2, on accumulators
/// of wgmma.cuh: a thread has two rows, h = 0 and 1; s[4 * n + 2 * h + e] is the logit of row h and
/// column 8 * n + 2 * t + e. The maximum that is subtracted may be up to 2^8 too small, so that
/// outputs seldom need another scale; sums are taken against the same maximum, so the result is
/// exact.

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

/// Return 2^x, log2(x) and 1 / x by the hardware's approximations.
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

/// Returns a logit with a soft cap: cap * tanh(x), in base 2, as cap - 2 cap / (1 + e^2x). The
/// hardware's tanh is too coarse. `slope` times a dot product is 2 log2(e) x.
__device__ __forceinline__ float cap_logit(float dot, float cap_log2, float slope) {
  float y;
  asm("ex2.approx.ftz.f32 %0,%1;" : "=f"(y) : "f"(dot * slope));
  return fmaf(-2.0F * cap_log2, inverse_fast(1.0F + y), cap_log2);
}

/// Turns the logits of row h of a later tile into weights. Updates its maximum (before the scale)
/// and this thread's part of its sum. `keep` is the factor of its outputs so far. `scale` makes
/// logits those of base 2. With kIsMasked, all logits may be minus infinity.
template <class Math, bool kIsMasked, int kCount>
__device__ __forceinline__ void weigh_row(float (&s)[kCount], int h, float& maximum, float& sum,
                                          float& keep, float scale) {
  constexpr int kColumns8 = kCount / 4;
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
  const float old = maximum;
  // Two minus infinities give NaN, which is not larger.
  maximum = (most - old) * scale > kLazyBits ? most : old;
  const float top = kIsMasked && maximum == -INFINITY ? 0.0F : maximum * scale;
  const float base = top - kWeightBias<Math>;
  keep = exp2_fast(fmaf(old, scale, -top));
  float sum0 = 0.0F;
  float sum1 = 0.0F;
#pragma unroll
  for (int n = 0; n < kColumns8; ++n) {
    s[n * 4 + 2 * h] = exp2_fast(fmaf(s[n * 4 + 2 * h], scale, -base));
    s[n * 4 + 2 * h + 1] = exp2_fast(fmaf(s[n * 4 + 2 * h + 1], scale, -base));
    sum0 += s[n * 4 + 2 * h];
    sum1 += s[n * 4 + 2 * h + 1];
  }
  sum = sum * keep + (sum0 + sum1);
}

/// Turns the logits of both rows of an item's first tile into weights, and begins their maxima and
/// sums. No product is in flight, so chunks of 32 columns that no row of the warp sees, which begin
/// at `seen` or later, are left out. `mask(chunk)` masks what a row does not see of a chunk.
template <class Math, int kCount, class Mask>
__device__ __forceinline__ void weigh_first(float (&s)[kCount], float (&maximum)[2],
                                            float (&sum)[2], const float (&scale)[2], int seen,
                                            Mask&& mask) {
  constexpr int kColumns8 = kCount / 4;
  constexpr int kChunks = (kColumns8 + 3) / 4;
  float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    if (chunk * 32 >= seen) continue;
    mask(chunk);
#pragma unroll
    for (int n = chunk * 4; n < chunk * 4 + 4 && n < kColumns8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = fmaxf(most[h], fmaxf(s[n * 4 + 2 * h], s[n * 4 + 2 * h + 1]));
      }
    }
  }
  float base[2];
  float total[2] = {0.0F, 0.0F};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    most[h] = fmaxf(most[h], __shfl_xor_sync(~0U, most[h], 1));
    most[h] = fmaxf(most[h], __shfl_xor_sync(~0U, most[h], 2));
    maximum[h] = most[h];
    base[h] = (most[h] == -INFINITY ? 0.0F : most[h] * scale[h]) - kWeightBias<Math>;
  }
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    if (chunk * 32 >= seen) {
#pragma unroll
      for (int i = chunk * 16; i < chunk * 16 + 16 && i < kCount; ++i) s[i] = 0.0F;
      continue;
    }
#pragma unroll
    for (int n = chunk * 4; n < chunk * 4 + 4 && n < kColumns8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[n * 4 + j] = exp2_fast(fmaf(s[n * 4 + j], scale[j >> 1], -base[j >> 1]));
        total[j >> 1] += s[n * 4 + j];
      }
    }
  }
  sum[0] = total[0];
  sum[1] = total[1];
}

}  // namespace kvarena::kernels
