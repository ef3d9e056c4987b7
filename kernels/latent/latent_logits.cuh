#pragma once

/// @file
/// The warpgroup of logits of the latent kernel. It multiplies the latents of a slab with the query
/// columns, and turns the logits into weights: online softmax with a maximum that may be up to 2^8
/// too small (hopper_softmax.cuh), here over the rows of the products. A thread has two tokens of
/// each 16, and four columns of each 16. Included by latent.cuh.

#include "kernels/common/hopper_softmax.cuh"
#include "kernels/latent/latent_slab.cuh"

namespace kvarena::kernels::latent {

/// Waits for the warpgroup of logits, and returns whether one of its threads has `is_true`.
__device__ __forceinline__ bool any_of_logits(bool is_true) {
  int any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred q, %2, 128, p;\n"
      "selp.b32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"(static_cast<int>(is_true)), "n"(kLogitsBarrier)
      : "memory");
  return __reduce_max_sync(~0U, any) != 0;
}

template <class C>
struct Logits {
  using Instance = C;
  using T = typename C::T;
  const Launch& launch;
  Shared<C>& shared;
  const int warp;  ///< of the four
  const int lane;
  const int g = lane / 4;
  const int t = lane % 4;
  const int thread = warp * 32 + lane;
  float scale = 0.0F;  ///< of a product, to log2
  int slab = 0;        ///< slabs so far, of all segments
  int segments = 0;    ///< so far
  float s[C::kColumns / 2];
  float maximum[C::kSums];  ///< before the scale; of columns 8 * (k / 2) + 2 * t + k % 2
  float sum[C::kSums];      ///< of this thread's tokens

  /// The column of value `k` of the thread.
  __device__ __forceinline__ int column_of(int k) const { return k / 2 * 8 + 2 * t + k % 2; }
  __device__ __forceinline__ void sync() const { sync_named<kLogitsBarrier>(128); }

  /// Computes the logits of a slab.
  __device__ __forceinline__ void multiply(int stage) {
    const std::uint32_t latents =
        operand_base(shared_address(shared.latents[0]), 16) + stage * (C::kSlabBytes >> 4);
    const std::uint32_t query = operand_base(shared_address(shared.query), 16);
    fence_products();
    fence_registers(s);
#pragma unroll
    for (int i = 0; i < C::kKeyDim / 16; ++i) {
      const int step = i * 32 / kPieceBytes * C::kAtomBytes + i * 32 % kPieceBytes;
      Wgmma<T, C::kColumns>::ss(s, operand_at<C::kGroupBytes, Swizzle::bytes_64>(latents, step),
                                operand_at<C::kGroupBytes, Swizzle::bytes_64>(query, step), i > 0);
    }
    commit_products();
    wait_products<0>();
    fence_registers(s);
  }

  /// Masks the logits of a slab that has new tokens or ends behind the row.
  __device__ __forceinline__ void mask(const ColumnsSegment& segment, int slab_token) {
    const int first_new = segment.seq_len - segment.q_len;
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
      const std::uint64_t path = shared.path[column_of(k)];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = slab_token + warp * 16 + g + 8 * h;
        const int at = token - first_new;
        const bool is_seen = at < 0 || (at < 64 && (path >> at & 1) != 0);
        if (!is_seen || token >= segment.seq_len) s[k / 2 * 4 + 2 * h + k % 2] = -INFINITY;
      }
    }
  }

  /// Raises the maxima to those of all tokens so far. Stores the factors of the outputs.
  __device__ __forceinline__ void raise(float* keep) {
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
      float most = fmaxf(s[k / 2 * 4 + k % 2], s[k / 2 * 4 + 2 + k % 2]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, d));
      if (g == 0) shared.warp_values[warp][column_of(k)] = most;
    }
    sync();
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
      float most = maximum[k];
#pragma unroll
      for (int w = 0; w < 4; ++w) most = fmaxf(most, shared.warp_values[w][column_of(k)]);
      const float its = maximum[k] == -INFINITY ? 0.0F : exp2_fast((maximum[k] - most) * scale);
      maximum[k] = most;
      sum[k] *= its;
      if (warp == 0 && g == 0) keep[column_of(k)] = its;
    }
  }

  /// Turns the logits into weights, and stores them with the factors of the outputs.
  __device__ __forceinline__ void weigh(bool is_apart, int stage) {
    bool grows = false;
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      const float most = fmaxf(s[k / 2 * 4 + k % 2], s[k / 2 * 4 + 2 + k % 2]);
      grows |= (most - maximum[k]) * scale > kLazyBits;  // two minus infinities give NaN
    }
    grows = any_of_logits(grows);
    // All threads have read the latents.
    if (thread < C::kTiles) arrive(&shared.tile_empty[stage][thread]);
    const int buffer = slab % C::kWeightBuffers;
    if (grows) {
      wait(&shared.weights_empty[buffer], ((slab / C::kWeightBuffers) & 1) ^ 1);
      raise(shared.keep[buffer]);
    }
    std::uint32_t words[C::kSums];  // [pairs of columns][h]
#pragma unroll
    for (int n = 0; n < C::kColumns / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int k = 2 * n + e;
        const float top = maximum[k] == -INFINITY ? 0.0F : maximum[k] * scale;
        s[4 * n + e] = exp2_fast(fmaf(s[4 * n + e], scale, -top));
        s[4 * n + 2 + e] = exp2_fast(fmaf(s[4 * n + 2 + e], scale, -top));
        sum[k] += s[4 * n + e] + s[4 * n + 2 + e];
      }
      words[2 * n] = columns::pack<T>(s[4 * n], s[4 * n + 1]);
      words[2 * n + 1] = columns::pack<T>(s[4 * n + 2], s[4 * n + 3]);
    }
    wait(&shared.weights_empty[buffer], ((slab / C::kWeightBuffers) & 1) ^ 1);
    char* const to = shared.weights[buffer] + warp * (kTileTokens * C::kWeightRow);
#pragma unroll
    for (int i = 0; i < C::kSums; ++i) {
      *reinterpret_cast<std::uint32_t*>(
          to + chunked_bytes(C::kWeightRow, g + i % 2 * 8, (i / 2 * 8 + 2 * t) * 2)) = words[i];
    }
    if (thread == 0) shared.flags[buffer] = (grows ? kRescale : 0) | (is_apart ? kApart : 0);
    fence_async_proxy();
    arrive(&shared.weights_full[buffer]);
  }

  /// Computes the weights of a slab.
  __device__ __forceinline__ void step(const ColumnsSegment& segment, int slab_token) {
    const int stage = slab % C::kStages;
    wait(&shared.latents_full[stage], (slab / C::kStages) & 1);
    multiply(stage);
    bool is_apart = false;
    if (slab_token + C::kTokens > unmasked_tokens(segment)) {
      mask(segment, slab_token);
      char* const latents = shared.latents[stage];
      if (segment.q_len > 1) {
        const int first_new = segment.seq_len - segment.q_len;
        is_apart = any_of_logits(
            !is_finite<C>(latents, first_new - slab_token, segment.seq_len - slab_token, thread));
      }
      sync();  // the products of all warps have read the latents
      clear_behind<C>(latents, segment.seq_len - slab_token, thread);
    }
    weigh(is_apart, stage);
    ++slab;
  }

  /// Adds up the sums of all threads, and gives them to the warpgroups of values.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
#pragma unroll
      for (int d = 4; d < 32; d *= 2) sum[k] += __shfl_xor_sync(~0U, sum[k], d);
    }
    sync();  // the last maxima of the warps have been read
    if (g == 0) {
#pragma unroll
      for (int k = 0; k < C::kSums; ++k) shared.warp_values[warp][column_of(k)] = sum[k];
    }
    wait(&shared.result_empty, (segments & 1) ^ 1);
    sync();
    if (thread < C::kColumns) {
      float all = 0.0F;
#pragma unroll
      for (int w = 0; w < 4; ++w) all += shared.warp_values[w][thread];
      shared.sum[thread] = all;
    }
    if (warp == 0 && g == 0) {
#pragma unroll
      for (int k = 0; k < C::kSums; ++k) shared.maximum[column_of(k)] = maximum[k];
    }
    arrive(&shared.result_full);
    ++segments;
  }

  /// Loads the query columns of a segment.
  __device__ __forceinline__ void load(const ColumnsSegment& segment) {
    load_query<C, 128>(launch, shared, segment, thread);
    sync();
  }
};

/// Computes all segments of the thread block.
template <class Its>
__device__ __forceinline__ void run_logits(Its& its, int words) {
  using C = typename Its::Instance;
  wait_for_previous_kernel();
  its.scale = logit_scale<C>(its.launch);
  while (true) {
    const ColumnsSegment segment = columns::segment_of(words);
    if (segment.slabs == 0) return;
    const int next =
        segment.next >= 0 ? columns::load_words(its.launch, segment.next, its.lane) : -1;
    its.load(segment);
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      its.maximum[k] = -INFINITY;
      its.sum[k] = 0.0F;
    }
#pragma unroll 1
    for (int i = 0; i < segment.slabs; ++i) its.step(segment, segment.first_token + i * C::kTokens);
    its.finish();
    if (columns::segment_of(words).next < 0) return;
    words = next;
  }
}

}  // namespace kvarena::kernels::latent
