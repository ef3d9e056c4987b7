#pragma once

/// @file
/// The softmax of the columns kernel: masks, the soft cap, and the running maximum and sum. A
/// thread has two columns, h = 0 and 1; s[4 * i + 2 * h + e] is the logit of column h and token
/// 8 * i + 2 * t + e of the slab. All is in log2. The maximum grows only when a logit exceeds it by
/// more than 2^8; until then, weights and sum use the old one, which is exact.

#include "kernels/columns/columns_config.cuh"

namespace kvarena::kernels::columns {

/// Returns 2^x, log2(x) and 1 / x by the hardware's approximations.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// log2 of the factor of the weights: f16 keeps all bits of weights down to 2^-21 of the maximum.
template <class T>
inline constexpr float kWeightBias = 0.0F;
template <>
inline constexpr float kWeightBias<__half> = 7.0F;

struct Unmasked {
  static constexpr bool value = false;
};

/// The tokens of the row that the two columns of a thread see: those from `low` to `first_new`, and
/// new tokens. Without a tree, query token i sees new tokens 0 .. i.
struct Sight {
  std::uint64_t path[2];  ///< bit j for new token j
  int low[2];             ///< first token, because of the window
  int first_new;          ///< position of new token 0
  int end;                ///< one past the row's last token
  bool has_window;        ///< `low` is not 0 for all
};

/// The running state of the two columns.
struct Softmax {
  float maximum[2];
  float sum[2];
};

/// Returns which of 32 neighbouring tokens a column sees, but for the window. `first` is the first
/// of them.
__device__ __forceinline__ std::uint32_t seen_of(std::uint64_t path, int first_new, int first) {
  const int old = first_new - first;
  if (old >= 32) return ~0U;
  if (old > 0) return static_cast<std::uint32_t>(path) << old | ((1U << old) - 1);
  return -old >= 64 ? 0U : static_cast<std::uint32_t>(path >> -old);
}

/// Masks the logits of tokens 32 * piece .. 32 * piece + 31 of a slab.
template <class C>
__device__ __forceinline__ void mask_piece(float (&s)[C::kTokens / 2], const Sight& sight,
                                           int slab_token, int t, int piece) {
  std::uint32_t seen[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    seen[h] = seen_of(sight.path[h], sight.first_new, slab_token + piece * 32 + 2 * t);
  }
#pragma unroll
  for (int i = piece * 4; i < piece * 4 + 4 && i < C::kTokens / 8; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int token = i * 8 + (j & 1);
      const int h = j >> 1;
      const bool is_seen = (seen[h] >> (token - piece * 32) & 1) != 0;
      if (!is_seen || token < sight.low[h] - slab_token - 2 * t) s[i * 4 + j] = -INFINITY;
    }
  }
}

/// Caps the logits: cap * tanh(scale * x / cap), as cap - 2 cap / (1 + e^(2 scale x / cap)). The
/// approximation of tanh is too coarse. Does nothing in instances without a soft cap.
template <class C>
__device__ __forceinline__ void cap_logits(float (&s)[C::kTokens / 2], const Constants& constants) {
  if constexpr (C::kCap) {
#pragma unroll
    for (int i = 0; i < C::kTokens / 2; ++i) {
      float power;
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(s[i] * constants.cap_slope));
      s[i] = fmaf(-2.0F * constants.cap, reciprocal_fast(1.0F + power), constants.cap);
    }
  }
}

/// Turns the logits of an item's first slab into weights and begins the state. No product is in
/// flight. Pieces of 32 tokens past the row's last are left out.
template <class C>
__device__ __forceinline__ void begin_softmax(float (&s)[C::kTokens / 2], Softmax& state,
                                              float scale, const Sight& sight, int slab_token,
                                              int t) {
  constexpr int kPieces = (C::kTokens + 31) / 32;
  constexpr int kEights = C::kTokens / 8;
  const int seen = sight.end - slab_token;
  const int full = sight.first_new - slab_token;  // all columns see what is before
  float maximum[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    if (piece * 32 >= seen) continue;
    if (piece * 32 + 32 > full || sight.has_window) {
      mask_piece<C>(s, sight, slab_token, t, piece);
    }
#pragma unroll
    for (int i = piece * 4; i < piece * 4 + 4 && i < kEights; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        maximum[h] = fmaxf(maximum[h], fmaxf(s[i * 4 + 2 * h], s[i * 4 + 2 * h + 1]));
      }
    }
  }
  float base[2];
  float sum[2] = {0.0F, 0.0F};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(~0U, maximum[h], 1));
    maximum[h] = fmaxf(maximum[h], __shfl_xor_sync(~0U, maximum[h], 2));
    state.maximum[h] = maximum[h];
    base[h] = (maximum[h] == -INFINITY ? 0.0F : maximum[h] * scale) - kWeightBias<typename C::T>;
  }
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece) {
    if (piece * 32 >= seen) {
#pragma unroll
      for (int i = piece * 16; i < piece * 16 + 16 && i < kEights * 4; ++i) s[i] = 0.0F;
      continue;
    }
#pragma unroll
    for (int i = piece * 4; i < piece * 4 + 4 && i < kEights; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[i * 4 + j] = exp2_fast(fmaf(s[i * 4 + j], scale, -base[j >> 1]));
        sum[j >> 1] += s[i * 4 + j];
      }
    }
  }
  state.sum[0] = sum[0];
  state.sum[1] = sum[1];
}

/// Turns the logits of a later slab into weights and updates the state. `keep` is the factor of the
/// output so far: 1 unless the maximum grew.
template <class C, bool kMasked>
__device__ __forceinline__ void continue_softmax(float (&s)[C::kTokens / 2], Softmax& state,
                                                 float (&keep)[2], float scale, const Sight& sight,
                                                 int slab_token, int t) {
  constexpr int kEights = C::kTokens / 8;
  if constexpr (kMasked) {
#pragma unroll
    for (int piece = 0; piece < (C::kTokens + 31) / 32; ++piece) {
      mask_piece<C>(s, sight, slab_token, t, piece);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float even = fmaxf(s[2 * h], s[2 * h + 1]);
    float odd = fmaxf(s[4 + 2 * h], s[4 + 2 * h + 1]);
#pragma unroll
    for (int i = 2; i < kEights; i += 2) {
      even = fmaxf(even, fmaxf(s[i * 4 + 2 * h], s[i * 4 + 2 * h + 1]));
      odd = fmaxf(odd, fmaxf(s[i * 4 + 4 + 2 * h], s[i * 4 + 5 + 2 * h]));
    }
    even = fmaxf(even, odd);
    even = fmaxf(even, __shfl_xor_sync(~0U, even, 1));
    even = fmaxf(even, __shfl_xor_sync(~0U, even, 2));
    const float old = state.maximum[h];
    // Both may be -infinity; the difference is then no number, and the maximum stays.
    const float maximum = (even - old) * scale > 8.0F ? even : old;
    state.maximum[h] = maximum;
    const float scaled = kMasked && maximum == -INFINITY ? 0.0F : maximum * scale;
    const float base = scaled - kWeightBias<typename C::T>;
    keep[h] = exp2_fast(fmaf(old, scale, -scaled));
    float even_sum = 0.0F;
    float odd_sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      s[i * 4 + 2 * h] = exp2_fast(fmaf(s[i * 4 + 2 * h], scale, -base));
      s[i * 4 + 2 * h + 1] = exp2_fast(fmaf(s[i * 4 + 2 * h + 1], scale, -base));
      even_sum += s[i * 4 + 2 * h];
      odd_sum += s[i * 4 + 2 * h + 1];
    }
    state.sum[h] = state.sum[h] * keep[h] + (even_sum + odd_sum);
  }
}

/// Adds the weight of a sink to the sum of a column. A column that sees no token keeps its output
/// of 0, because its sum of products is 0.
template <class C>
__device__ __forceinline__ float with_sink(float sum, float maximum, float sink, float scale) {
  const float scaled = maximum == -INFINITY ? 0.0F : maximum * scale;
  return sum + exp2_fast(sink * kLog2e - scaled + kWeightBias<typename C::T>);
}

/// Returns the natural log-sum-exp of a column. When the sink is far above every logit, the sum is
/// infinite and the log-sum-exp is the sink.
template <class C>
__device__ __forceinline__ float log_sum_exp(float sum, float maximum, float scale,
                                             const float* sink) {
  if (!(sum > 0.0F) || maximum == -INFINITY) return -INFINITY;
  const float lse = (maximum * scale - kWeightBias<typename C::T> + log2_fast(sum)) * kLn2;
  return lse == INFINITY && sink != nullptr ? *sink : lse;
}

}  // namespace kvarena::kernels::columns
