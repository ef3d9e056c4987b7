#pragma once

/// @file
/// The instance of 64 columns: two warpgroups that each have half of the dims of V for all columns
/// (256 dims: 128 registers a thread), and take slabs in turn. The owner of a slab computes its
/// logits and weights, and keeps these in registers for its half. It also writes them over the
/// positional elements of the slab, which nobody needs any more, for the other warpgroup's half.
/// The products of one warpgroup fill the time in which the other one has none. The rows of the
/// products are query columns here. Included by latent.cuh.

#include "kernels/columns/columns_softmax.cuh"
#include "kernels/common/hopper_operands.cuh"
#include "kernels/latent/latent_slab.cuh"

namespace kvarena::kernels::latent {

template <class C>
struct Half {
  using T = typename C::T;
  static constexpr int kDims = C::kDim / 2;
  static constexpr int kThreads = kValueWarps * 32;  ///< of both
  /// Products for all dims: ptxas wants the accumulators of one to fit the registers of a thread at
  /// the launch.
  static constexpr int kRuns = C::kConverts ? 2 : 1;
  static constexpr int kRunDims = kDims / kRuns;
  static constexpr int kPositionsAt = C::kDim * 2 / kPieceBytes * C::kAtomBytes;

  const Launch& launch;
  Shared<C>& shared;
  const int warp;  ///< of the eight
  const int lane;
  const int half;      ///< of the dims; slabs of this parity are the warpgroup's own
  float scale = 0.0F;  ///< of a product, to log2
  int words = 0;       ///< of the segment
  int slab = 0;        ///< its first one, counted over all segments
  int first_masked;    ///< and the first one that needs a mask
  float o[kRuns][kRunDims / 2];
  float s[C::kTokens / 2];
  std::uint32_t weights[C::kTiles][4];
  int meetings = 0;  ///< in a build for racecheck
  float maximum[2];  ///< before the scale; of columns column_of(h)
  float sum[2];      ///< of this thread's tokens of own slabs

  __device__ __forceinline__ int g() const { return lane / 4; }
  __device__ __forceinline__ int t() const { return lane % 4; }
  /// Output i % 4 of eight dims, number i / 4.
  __device__ __forceinline__ float& out(int i) { return o[i / (kRunDims / 2)][i % (kRunDims / 2)]; }
  __device__ __forceinline__ void fence_outputs() {
#pragma unroll
    for (int run = 0; run < kRuns; ++run) fence_registers(o[run]);
  }
  /// The column of row h of the thread.
  __device__ __forceinline__ int column_of(int h) const { return warp % 4 * 16 + g() + 8 * h; }
  __device__ __forceinline__ int thread() const { return warp % 4 * 32 + lane; }
  __device__ __forceinline__ bool any_of_half(bool is_true) const {
    return columns::any_of_warpgroup(is_true, half);
  }
  /// Waits for both warpgroups.
  __device__ __forceinline__ void meet() {
    latent::meet<kValuesBarrier, kThreads>(&shared.meeting, meetings);
  }
  /// Tells that the warp needs a tile no more.
  __device__ __forceinline__ void release(Barrier* barrier) const { arrive_as_warp(barrier, lane); }

  /// Computes the logits of a slab.
  __device__ __forceinline__ void multiply_key(int stage) {
    const std::uint32_t latents =
        operand_base(shared_address(shared.latents[0]), 16) + stage * (C::kSlabBytes >> 4);
    const std::uint32_t query = operand_base(shared_address(shared.query), 16);
    fence_registers(s);
    fence_products();
#pragma unroll
    for (int i = 0; i < C::kKeyDim / 16; ++i) {
      const int step = i * 32 / kPieceBytes * C::kAtomBytes + i * 32 % kPieceBytes;
      Wgmma<T, C::kTokens>::ss(s, operand_at<C::kGroupBytes, Swizzle::bytes_64>(query, step),
                               operand_at<C::kGroupBytes, Swizzle::bytes_64>(latents, step), i > 0);
    }
    commit_products();
    wait_products<0>();
    fence_registers(s);
  }
  /// Returns the operand V of a tile of a slab: a run of this half.
  __device__ __forceinline__ std::uint64_t values(int stage, int tile, int run) const {
    const std::uint32_t all = operand_base(shared_address(shared.latents[0]), C::kAtomBytes) +
                              stage * (C::kSlabBytes >> 4) +
                              half * (kDims * 2 / kPieceBytes * C::kAtomBytes >> 4);
    return operand_at<C::kGroupBytes, Swizzle::bytes_64>(
        all, tile * C::kTileBytes + run * (kRunDims * 2 / kPieceBytes * C::kAtomBytes));
  }
  /// Begins to add the weighted values of the own slab, a group of products a tile.
  __device__ __forceinline__ void multiply_own(int stage) {
    fence_outputs();
    fence_products();
#pragma unroll
    for (int tile = 0; tile < C::kTiles; ++tile) {
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        Wgmma<T, kRunDims>::rs_mn(o[run], weights[tile], values(stage, tile, run));
      }
      commit_products();
    }
  }
  /// Begins to add those of the other warpgroup's slab.
  __device__ __forceinline__ void multiply_other(int stage) {
    const std::uint32_t weights_at =
        operand_base(shared_address(shared.latents[0]) + kPositionsAt, C::kAtomBytes) +
        stage * (C::kSlabBytes >> 4);
    fence_outputs();
    fence_products();
#pragma unroll
    for (int tile = 0; tile < C::kTiles; ++tile) {
      const std::uint64_t a =
          operand_at<C::kGroupBytes, Swizzle::bytes_64>(weights_at, tile * C::kTileBytes);
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        Wgmma<T, kRunDims>::ss_mn(o[run], a, values(stage, tile, run), 1);
      }
      commit_products();
    }
  }
  /// Gives back the tiles of a slab as soon as they have been multiplied.
  __device__ __forceinline__ void release_tiles(int stage) {
    static_assert(C::kTiles == 4);
    wait_products<3>();
    release(&shared.tile_empty[stage][0]);
    wait_products<2>();
    release(&shared.tile_empty[stage][1]);
    wait_products<1>();
    release(&shared.tile_empty[stage][2]);
    wait_products<0>();
    fence_outputs();
    release(&shared.tile_empty[stage][3]);
  }

  /// Multiplies the outputs so far with the factors of their columns.
  __device__ __forceinline__ void rescale(int stage) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      load_later();
      const float keep = shared.keep[stage][column_of(h)];
#pragma unroll
      for (int i = 2 * h; i < kDims / 2; i += 4) {
        out(i) *= keep;
        out(i + 1) *= keep;
      }
    }
  }

  /// Adds the weighted values of a slab without those of weight 0, which may not be finite.
  __device__ __forceinline__ void weigh_apart(int stage) {
    constexpr int kAtOnce = 4;  // runs of eight dims: registers are few
    const char* const latents = shared.latents[stage];
#pragma unroll
    for (int first = 0; first < kDims / 8; first += kAtOnce) {
      load_later();
#pragma unroll 1
      for (int token = 0; token < C::kTokens; ++token) {
        float weight[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          int byte = (C::kDim + column_of(h)) * 2;
          asm volatile("" : "+r"(byte));  // no address is kept over the loop
          weight[h] = columns::unpack<T>(*reinterpret_cast<const std::uint16_t*>(
                                             latents + chunked_bytes(C::kRowBytes, token, byte)))
                          .x;
        }
#pragma unroll
        for (int i = first; i < first + kAtOnce; ++i) {
          int byte = (half * kDims + i * 8 + 2 * t()) * 2;
          asm volatile("" : "+r"(byte));
          const float2 value = columns::unpack<T>(*reinterpret_cast<const std::uint32_t*>(
              latents + chunked_bytes(C::kRowBytes, token, byte)));
          float* const to = &out(i * 4);
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            to[2 * h] = weight[h] != 0.0F ? fmaf(weight[h], value.x, to[2 * h]) : to[2 * h];
            to[2 * h + 1] =
                weight[h] != 0.0F ? fmaf(weight[h], value.y, to[2 * h + 1]) : to[2 * h + 1];
          }
        }
      }
    }
  }

  /// Does the same, and zeroes this half of the slab, so that its products add nothing.
  __device__ __forceinline__ void take_apart(int stage) {
    constexpr int kOfHalf = kDims * 2 / kChunkBytes;
    weigh_apart(stage);
    any_of_half(false);
#pragma unroll 1
    for (int chunk = thread(); chunk < C::kTokens * kOfHalf; chunk += 128) {
      const int byte = half * (kDims * 2) + chunk % kOfHalf * kChunkBytes;
      *reinterpret_cast<uint4*>(shared.latents[stage] +
                                chunked_bytes(C::kRowBytes, chunk / kOfHalf, byte)) =
          make_uint4(0, 0, 0, 0);
    }
    fence_async_proxy();
    any_of_half(false);
  }

  /// Waits for the weights of the other warpgroup's slab `index`, and follows its maxima.
  /// Returns its flags.
  __device__ __forceinline__ int follow(int index) {
    const int stage = 1 - half;
    wait(&shared.weights_full[stage], index / 2 & 1);
    const int flags = __reduce_max_sync(~0U, shared.flags[stage]);
    if ((flags & kRescale) != 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        maximum[h] = shared.maximum[stage][column_of(h)];
        sum[h] *= shared.keep[stage][column_of(h)];
      }
    }
    return flags;
  }

  /// Masks the logits of a slab that has new tokens or ends behind the row. Clears what is behind
  /// the row. Returns whether weights of 0 must not be multiplied.
  __device__ __forceinline__ bool mask(int index) {
    const ColumnsSegment segment = columns::segment_of(words);
    const int slab_token = segment.first_token + (index - slab) * C::kTokens;
    const int first_new = segment.seq_len - segment.q_len;
    const columns::Sight sight{{shared.path[column_of(0)], shared.path[column_of(1)]},
                               {0, 0},
                               first_new,
                               segment.seq_len,
                               false};
#pragma unroll
    for (int piece = 0; piece < C::kTokens / 32; ++piece) {
      columns::mask_piece<C>(s, sight, slab_token, t(), piece);
    }
    char* const latents = shared.latents[half];
    bool is_apart = false;
    if (segment.q_len > 1) {
      is_apart = any_of_half(
          !is_finite<C>(latents, first_new - slab_token, segment.seq_len - slab_token, thread()));
    }
    any_of_half(false);  // the products of all warps have read the latents
    clear_behind<C>(latents, segment.seq_len - slab_token, thread());
    fence_async_proxy();
    any_of_half(false);  // all is cleared
    return is_apart;
  }

  /// Turns the logits of the own slab into weights, and gives them to the other warpgroup. Returns
  /// the slab's flags.
  __device__ __forceinline__ int weigh(bool is_apart) {
    bool grows = false;
    float most[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = s[2 * h];
#pragma unroll
      for (int n = 0; n < C::kTokens / 8; ++n) {
        most[h] = fmaxf(most[h], fmaxf(s[4 * n + 2 * h], s[4 * n + 2 * h + 1]));
      }
      grows |= (most[h] - maximum[h]) * scale > kLazyBits;  // two minus infinities give NaN
    }
    grows = any_of_half(grows);  // and the products of all warps have read the positions
    if (grows) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        most[h] = fmaxf(most[h], __shfl_xor_sync(~0U, most[h], 1));
        most[h] = fmaxf(most[h], __shfl_xor_sync(~0U, most[h], 2));
        most[h] = fmaxf(most[h], maximum[h]);
        const float keep =
            maximum[h] == -INFINITY ? 0.0F : exp2_fast((maximum[h] - most[h]) * scale);
        maximum[h] = most[h];
        sum[h] *= keep;
        if (t() == 0) {
          shared.keep[half][column_of(h)] = keep;
          shared.maximum[half][column_of(h)] = maximum[h];
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float top = maximum[h] == -INFINITY ? 0.0F : maximum[h] * scale;
#pragma unroll
      for (int n = 0; n < C::kTokens / 8; ++n) {
        float* const x = s + 4 * n + 2 * h;
        x[0] = exp2_fast(fmaf(x[0], scale, -top));
        x[1] = exp2_fast(fmaf(x[1], scale, -top));
        sum[h] += x[0] + x[1];
        weights[n / 2][n % 2 * 2 + h] = columns::pack<T>(x[0], x[1]);
      }
    }
    const int token = lane / 16 * 8 + lane % 8;
    const int byte = (C::kDim + warp % 4 * 16 + lane / 8 % 2 * 8) * 2;
    const std::uint32_t to =
        shared_address(shared.latents[half]) + chunked_bytes(C::kRowBytes, token, byte);
#pragma unroll
    for (int tile = 0; tile < C::kTiles; ++tile) {
      asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                       to + tile * C::kTileBytes),
                   "r"(weights[tile][0]), "r"(weights[tile][1]), "r"(weights[tile][2]),
                   "r"(weights[tile][3])
                   : "memory");
    }
    const int flags = (grows ? kRescale : 0) | (is_apart ? kApart : 0);
    if (thread() == 0) shared.flags[half] = flags;
    fence_async_proxy();
    arrive(&shared.weights_full[half]);
    return flags;
  }

  /// Computes the weights of the own slab `index`. Returns its flags.
  __device__ __forceinline__ int compute(int index) {
    wait(&shared.latents_full[half], index / 2 & 1);
    multiply_key(half);
    bool is_apart = false;
    if (index >= first_masked) is_apart = mask(index);
    return weigh(is_apart);
  }

  /// Adds slab `index`.
  __device__ __forceinline__ void step(int index) {
    const int stage = index & 1;
    const bool is_own = stage == half;
    const int flags = is_own ? compute(index) : follow(index);
    __syncwarp();  // a warp has written the factors and the weights of its columns
    if ((flags & kRescale) != 0) rescale(stage);
    if ((flags & kApart) != 0) take_apart(stage);
    if (is_own) {
      multiply_own(half);
      release_tiles(half);
    } else {
      multiply_other(1 - half);
      release_tiles(1 - half);
    }
  }

  /// Adds up the sums of all threads of a column.
  __device__ __forceinline__ void add_sums() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(~0U, sum[h], 1);
      sum[h] += __shfl_xor_sync(~0U, sum[h], 2);
      if (t() == 0) shared.sum[half][column_of(h)] = sum[h];
    }
    meet();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = shared.sum[0][column_of(h)] + shared.sum[1][column_of(h)];
    }
  }

  /// Writes the outputs of a whole item.
  __device__ __forceinline__ void write(const ColumnsSegment& segment) {
    const ColumnsParams& p = launch.params;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      load_later();
      const int column = first_column<C>(segment) + column_of(h);
      const bool is_in = column < segment.columns;
      const columns::Place place =
          columns::place_of(launch, segment.q_begin, segment.head, is_in ? column : 0);
      const float* const sink = p.sinks != nullptr ? p.sinks + place.head : nullptr;
      float all = sum[h];
      if (sink != nullptr) all = columns::with_sink<C>(all, maximum[h], *sink, scale);
      if (p.lse != nullptr && half == 0 && t() == 0 && is_in) {
        p.lse[place.token * p.limits.num_q_heads + place.head] =
            columns::log_sum_exp<C>(all, maximum[h], scale, sink);
      }
      const float factor = all > 0.0F ? scale_of<C>(p.scales.value) / all : 0.0F;
      char* const to = static_cast<char*>(p.out) + place.token * p.out_token_stride +
                       place.head * (C::kDim * 2) + half * (kDims * 2) + t() * kChunkBytes;
#pragma unroll
      for (int run = 0; run < kDims / 32; ++run) {
        std::uint32_t words[1][4];  // of eight dims
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* const from = &out((run * 4 + i) * 4 + 2 * h);
          words[0][i] = columns::pack<T>(from[0] * factor, from[1] * factor);
        }
        transpose_quads<1>(words, t());
        store_piece(to + run * 64, words[0], is_in);
      }
    }
  }

  /// Writes the outputs of a part of an item, not normalised.
  __device__ __forceinline__ void write_part(const ColumnsSegment& segment) {
    const int count = segment.columns - first_column<C>(segment);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (column_of(h) >= count) continue;
      const std::int64_t row = std::int64_t{segment.partial} + column_of(h);
      if (half == 0 && t() == 0) __stcg(&launch.max_sum()[row], make_float2(maximum[h], sum[h]));
      float* const to = launch.outputs() + row * C::kDim + half * kDims + 2 * t();
#pragma unroll
      for (int n = 0; n < kDims / 8; ++n) {
        __stcg(reinterpret_cast<float2*>(to + n * 8),
               make_float2(out(n * 4 + 2 * h), out(n * 4 + 2 * h + 1)));
      }
    }
  }

  /// Computes all segments of the thread block.
  __device__ __forceinline__ void run(int first_words) {
    words = first_words;
    wait_for_previous_kernel();
    scale = logit_scale<C>(launch);
    while (true) {
      const ColumnsSegment segment = columns::segment_of(words);
      if (segment.slabs == 0) return;
      load_query<C, kThreads>(launch, shared, segment, warp * 32 + lane);
      meet();
#pragma unroll
      for (int i = 0; i < kDims / 2; ++i) out(i) = 0.0F;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        maximum[h] = -INFINITY;
        sum[h] = 0.0F;
      }
      const int known = unmasked_tokens(segment) - segment.first_token;
      first_masked = slab + max(known, 0) / C::kTokens;
      const int end = __reduce_max_sync(~0U, slab + segment.slabs);
#pragma unroll 1
      for (int index = slab; index < end; ++index) step(index);
      slab = end;
      add_sums();
      const ColumnsSegment done = columns::segment_of(words);  // registers are few before
      if (done.partial < 0) {
        write(done);
      } else {
        write_part(done);
      }
      if (done.next < 0) return;
      words = columns::load_words(launch, done.next, lane);
    }
  }
};

}  // namespace kvarena::kernels::latent
