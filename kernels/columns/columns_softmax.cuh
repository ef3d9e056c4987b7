#pragma once

/// @file
/// The softmax of the columns kernel: what its query columns see, and their ends. The rows of
/// hopper_softmax.cuh are query columns here, and its columns are the tokens of a slab.

#include "kernels/columns/columns_config.cuh"
#include "kernels/common/hopper_softmax.cuh"

namespace kvarena::kernels::columns {

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

/// Caps the logits of two columns with these slopes. Does nothing in instances without a soft cap.
template <class C>
__device__ __forceinline__ void cap_logits(float (&s)[C::kTokens / 2], const Constants& constants,
                                           const float (&slopes)[2]) {
  if constexpr (C::kCap) {
#pragma unroll
    for (int i = 0; i < C::kTokens / 2; ++i) {
      s[i] = cap_logit(s[i], constants.cap, slopes[i >> 1 & 1]);
    }
  }
}

/// Turns the logits of an item's first slab into weights and begins the state.
template <class C>
__device__ __forceinline__ void begin_softmax(float (&s)[C::kTokens / 2], Softmax& state,
                                              const float (&scale)[2], const Sight& sight,
                                              int slab_token, int t) {
  const int full = sight.first_new - slab_token;  // all columns see what is before
  weigh_first<typename C::T>(s, state.maximum, state.sum, scale, sight.end - slab_token,
                             [&](int piece) {
                               if (piece * 32 + 32 > full || sight.has_window) {
                                 mask_piece<C>(s, sight, slab_token, t, piece);
                               }
                             });
}

/// Turns the logits of a later slab into weights and updates the state. `keep` is the factor of the
/// output so far: 1 unless the maximum grew.
template <class C, bool kMasked>
__device__ __forceinline__ void continue_softmax(float (&s)[C::kTokens / 2], Softmax& state,
                                                 float (&keep)[2], const float (&scale)[2],
                                                 const Sight& sight, int slab_token, int t) {
  if constexpr (kMasked) {
#pragma unroll
    for (int piece = 0; piece < (C::kTokens + 31) / 32; ++piece) {
      mask_piece<C>(s, sight, slab_token, t, piece);
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    weigh_row<typename C::T, kMasked>(s, h, state.maximum[h], state.sum[h], keep[h], scale[h]);
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
