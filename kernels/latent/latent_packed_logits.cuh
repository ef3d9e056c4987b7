#pragma once

/// @file
/// The warpgroups of logits over packed latents (latent_packed.cuh). Two take slabs in turn,
/// so that the softmax of one slab fills the time of another one's products. A warpgroup decides
/// about the maxima when the other one has decided with the slab before. Thread (g, t) of a warp
/// has tokens g and g + 8 of the warp's tile. A quad has the two tokens' elements among its lanes,
/// 32 neighbouring dims of each run a lane. Included by latent.cuh.

#include "kernels/latent/latent_packed.cuh"

namespace kvarena::kernels::latent {

template <class C>
struct PackedLogits : Logits<C> {
  using Base = Logits<C>;
  using Instance = C;
  using T = typename C::T;
  using Base::column_of;
  using Base::g;
  using Base::lane;
  using Base::launch;
  using Base::maximum;  // to log2, and smaller by kBias than that of weights
  using Base::s;
  using Base::scale;
  using Base::segments;
  using Base::shared;
  using Base::slab;
  using Base::sum;
  using Base::t;
  using Base::thread;
  using Base::warp;  // of the warpgroup's four
  /// Weights are at most 2^(kBias + kLazyBits), which f16 has. Those down to 2^-21 of the largest
  /// keep all their bits.
  static constexpr float kBias = kWeightBias<__half>;
  int warpgroup = 0;
  int meetings = 0;        ///< in a build for racecheck
  int exponent[2];         ///< of the scales of the thread's tokens
  std::uint32_t ratio[2];  ///< scale t of these, divided by their powers of two; twice
  int first = 0;           ///< slab of the segment
  unsigned real = 0;       ///< columns of the thread that exist: padding never raises maxima

  __device__ __forceinline__ bool any_of_its(bool is_true) const {
    return columns::any_of_warpgroup(is_true, warpgroup);
  }
  __device__ __forceinline__ void sync() const { any_of_its(false); }
  /// Waits for both warpgroups of logits.
  __device__ __forceinline__ void meet() {
    latent::meet<kAllLogitsBarrier, C::kLogitsThreads>(&shared.meeting, meetings);
  }

  /// Loads the query columns of a segment.
  __device__ __forceinline__ void load(const ColumnsSegment& segment) {
    load_packed_query<C>(launch, shared, segment, scale, warpgroup * 128 + thread);
    const int count = segment.columns - first_column<C>(segment);
    real = 0;
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) real |= column_of(k) < count ? 1U << k : 0U;
    first = slab;
    meet();
  }

  /// The row of token g of the warp's tile.
  __device__ __forceinline__ char* row(int stage, int h) const {
    return shared.latents[stage] + (warp * kTileTokens + g + 8 * h) * kLatentFp8Bytes;
  }
  static __device__ __forceinline__ std::uint64_t query(std::uint32_t base, int step) {
    return operand_at<C::kGroupBytes, Swizzle::bytes_64>(
        base, step * 32 / kPieceBytes * C::kAtomBytes + step * 32 % kPieceBytes);
  }

  /// Loads 16 bytes of the two tokens as the operands of two steps.
  __device__ __forceinline__ void load_unit(std::uint32_t (&a)[2][4], int stage, int byte) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 x = *reinterpret_cast<const uint4*>(row(stage, h) + byte + 2 * t * kChunkBytes);
      a[0][h] = x.x;
      a[0][2 + h] = x.y;
      a[1][h] = x.z;
      a[1][2 + h] = x.w;
    }
  }

  /// Computes the logits of a slab, divided by the factors of columns. The products of a run are
  /// multiplied with its scales.
  __device__ __forceinline__ void multiply(int stage) {
    const std::uint32_t base = operand_base(shared_address(shared.query), 16);
    std::uint32_t a[2][2][4];
    float products[C::kColumns / 2];
    load_unit(a[0], stage, kLatentFp8PositionAt);
    load_unit(a[1], stage, kLatentFp8PositionAt + kChunkBytes);
    fence_operands(a[0]);
    fence_operands(a[1]);
    fence_registers(s);
    fence_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Wgmma<T, C::kColumns>::rs_k(s, a[i / 2][i % 2], query(base, C::kRuns * 8 + i), i > 0);
      if (i == 1) commit_products();
    }
    commit_products();
    float4 scales[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scales[h] = load_scales(row(stage, h));
      exponent[h] = exponent_of(scales[h]);
      const float inverse = power_of_two(-exponent[h]);
#pragma unroll
      for (int run = 0; run < C::kRuns; ++run) {
        const float its = scale_of_run(scales[h], run) * inverse;
        if (run == 0 || t == run) ratio[h] = columns::pack<__half>(its, its);
      }
    }
    wait_products<1>();
    load_unit(a[0], stage, 0);
    wait_products<0>();
    fence_registers(s);
#pragma unroll
    for (int run = 0; run < C::kRuns; ++run) {
      load_unit(a[1], stage, run * kLatentFp8Run + kChunkBytes);
      fence_registers(products);
#pragma unroll
      for (int unit = 0; unit < 2; ++unit) {
        fence_operands(a[unit]);
        fence_products();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int step = i / 2 * (C::kRuns * 4) + run * 4 + unit * 2 + i % 2;
          WgmmaFp8<C::kColumns>::rs_k(products, a[unit][i % 2], query(base, step), unit + i > 0);
        }
        commit_products();
      }
      if (run + 1 < C::kRuns) {
        wait_products<1>();
        load_unit(a[0], stage, (run + 1) * kLatentFp8Run);
      }
      wait_products<0>();
      fence_registers(products);
#pragma unroll
      for (int i = 0; i < C::kColumns / 2; ++i) {
        s[i] = fmaf(products[i], scale_of_run(scales[i / 2 % 2], run), s[i]);
      }
    }
  }

  /// Makes the logits of what has been multiplied, to log2, times the powers of two of the tokens'
  /// scales.
  __device__ __forceinline__ void scale_logits() {
    const float more[2] = {static_cast<float>(exponent[0]), static_cast<float>(exponent[1])};
#pragma unroll
    for (int n = 0; n < C::kColumns / 8; ++n) {
      const float2 factor = *reinterpret_cast<const float2*>(shared.factor + n * 8 + 2 * t);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        s[4 * n + 2 * h] = fmaf(s[4 * n + 2 * h], factor.x, more[h]);
        s[4 * n + 2 * h + 1] = fmaf(s[4 * n + 2 * h + 1], factor.y, more[h]);
      }
    }
  }
  /// Returns the largest logit of a column.
  __device__ __forceinline__ float largest(int k) const {
    const int i = k / 2 * 4 + k % 2;
    return fmaxf(s[i], s[i + 2]);
  }

  /// Sets the maxima to those that the other warpgroup has raised.
  __device__ __forceinline__ void follow() {
    if (__reduce_max_sync(~0U, shared.grew[1 - warpgroup]) == 0) return;
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      const float most = shared.raised[column_of(k)];
      sum[k] *= maximum[k] == -INFINITY ? 0.0F : exp2_fast(maximum[k] - most);
      maximum[k] = most;
    }
  }

  /// Raises the maxima to those of all tokens so far. Stores them, and the factors of the outputs.
  __device__ __forceinline__ void raise(float* keep) {
    float(*const values)[C::kColumns] = shared.warp_values + warpgroup * 4;
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
      float most = largest(k) - kBias;
#pragma unroll
      for (int d = 4; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, d));
      if (g == 0) values[warp][column_of(k)] = most;
    }
    sync();
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
      float most = maximum[k];
#pragma unroll
      for (int w = 0; w < 4; ++w) most = fmaxf(most, values[w][column_of(k)]);
      const float its = maximum[k] == -INFINITY ? 0.0F : exp2_fast(maximum[k] - most);
      maximum[k] = most;
      sum[k] *= its;
      if (warp == 0 && g == 0) {
        keep[column_of(k)] = its;
        shared.raised[column_of(k)] = most;
      }
    }
  }

  /// Stores the weights of a slab, which are in `s`.
  __device__ __forceinline__ void store_weights(int buffer) const {
    const std::uint32_t to =
        shared_address(shared.weights[buffer]) + warp * (kTileTokens * C::kWeightRow);
#pragma unroll
    for (int n = 0; n < C::kColumns / 8; n += 2) {
      std::uint32_t words[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const x = s + 4 * (n + i / 2) + 2 * (i % 2);
        words[i] = columns::pack<__half>(x[0], x[1]);
      }
      const int at = chunked_bytes(C::kWeightRow, lane % 16, (n + lane / 16) * kChunkBytes);
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to + at),
                   "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                   : "memory");
    }
  }

  /// Decides about the maxima with the own slab, after the slab before. Returns whether they grow.
  __device__ __forceinline__ bool decide(int stage, int buffer) {
    if (slab > 0) wait(&shared.maxima_full[1 - warpgroup], (slab - 1) / 2 & 1);
    if (slab > first) follow();
    bool grows = false;
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      const bool is_more = largest(k) - maximum[k] > kLazyBits + kBias;  // NaN is not
      grows |= is_more && (real >> k & 1) != 0;
    }
    grows = any_of_its(grows);
    // All threads have read the latents.
    if (thread < C::kTiles) arrive(&shared.tile_empty[stage][thread]);
    if (grows) {
      wait(&shared.weights_empty[buffer], ((slab / C::kWeightBuffers) & 1) ^ 1);
      raise(shared.keep[buffer]);
    }
    if (thread == 0) shared.grew[warpgroup] = static_cast<int>(grows);
    arrive(&shared.maxima_full[warpgroup]);
    return grows;
  }

  /// Turns the logits into weights, and stores them with the factors of the outputs.
  __device__ __forceinline__ void weigh(bool is_apart, int stage) {
    const int buffer = slab % C::kWeightBuffers;
    const bool grows = decide(stage, buffer);
    const float inverse[2] = {power_of_two(-exponent[0]), power_of_two(-exponent[1])};
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      const float top = maximum[k] == -INFINITY ? 0.0F : maximum[k];
      const int i = k / 2 * 4 + k % 2;
      s[i] = exp2_fast(s[i] - top);
      s[i + 2] = exp2_fast(s[i + 2] - top);
      sum[k] = fmaf(s[i], inverse[0], fmaf(s[i + 2], inverse[1], sum[k]));
    }
    wait(&shared.weights_empty[buffer], ((slab / C::kWeightBuffers) & 1) ^ 1);
    store_weights(buffer);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      shared.ratios[buffer][t][warp * kTileTokens + g + 8 * h] =
          __ushort_as_half(static_cast<unsigned short>(ratio[h]));
    }
    if (thread == 0) shared.flags[buffer] = (grows ? kRescale : 0) | (is_apart ? kApart : 0);
    fence_async_proxy();
    arrive(&shared.weights_full[buffer]);
  }

  /// Computes the weights of a slab, if it is one of the own ones.
  __device__ __forceinline__ void step(const ColumnsSegment& segment, int slab_token) {
    if (slab % 2 != warpgroup) {
      ++slab;
      return;
    }
    const int stage = slab % C::kStages;
    wait(&shared.latents_full[stage], (slab / C::kStages) & 1);
    multiply(stage);
    scale_logits();
    bool is_apart = false;
    if (slab_token + C::kTokens > unmasked_tokens(segment)) {
      this->mask(segment, slab_token);
      char* const latents = shared.latents[stage];
      if (segment.q_len > 1) {
        const int first_new = segment.seq_len - segment.q_len;
        is_apart = any_of_its(!is_packed_finite<C>(latents, first_new - slab_token,
                                                   segment.seq_len - slab_token, thread));
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int token = slab_token + warp * kTileTokens + g + 8 * h;
        if (token >= segment.seq_len) ratio[h] = 0;  // what was there may be no number
      }
      sync();  // all warps have read the latents
      clear_packed<C>(latents, segment.seq_len - slab_token, thread);
      fence_async_proxy();
      sync();  // all is cleared
    }
    weigh(is_apart, stage);
    ++slab;
  }

  /// Adds up the sums of all threads, and gives them to the warpgroups of values.
  __device__ __forceinline__ void finish() {
    if ((slab - 1) % 2 != warpgroup) {
      wait(&shared.maxima_full[1 - warpgroup], (slab - 1) / 2 & 1);
      follow();
    }
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
#pragma unroll
      for (int d = 4; d < 32; d *= 2) sum[k] += __shfl_xor_sync(~0U, sum[k], d);
    }
    sync();  // the last maxima of the warps have been read
    if (g == 0) {
#pragma unroll
      for (int k = 0; k < C::kSums; ++k) {
        shared.warp_values[warpgroup * 4 + warp][column_of(k)] = sum[k];
      }
    }
    wait(&shared.result_empty, (segments & 1) ^ 1);
    meet();
    ++segments;
    if (warpgroup != 0) return;
    if (thread < C::kColumns) {
      float all = 0.0F;
      // The warpgroup that had the segment's first slab comes first: the order of the sum does not
      // depend on what the thread block computed before.
      const int begins = (first & 1) * 4;
#pragma unroll
      for (int w = 0; w < 4 * C::kLogitsGroups; ++w) all += shared.warp_values[w ^ begins][thread];
      shared.sum[thread] = all;
    }
    if (warp == 0 && g == 0) {
#pragma unroll
      for (int k = 0; k < C::kSums; ++k) shared.maximum[column_of(k)] = maximum[k];
    }
    arrive(&shared.result_full);
  }
};

}  // namespace kvarena::kernels::latent
