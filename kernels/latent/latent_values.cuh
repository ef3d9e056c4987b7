#pragma once

/// @file
/// The warpgroups of values of the latent kernel. Each multiplies the weights of a slab with 256
/// dims of V: four products of 64 dims, whose columns are the query columns. Included by
/// latent.cuh.

#include "kernels/columns/columns_combine.cuh"
#include "kernels/latent/latent_config.cuh"

namespace kvarena::kernels::latent {

/// Exchanges rows and columns of an 8 x 8 matrix of 16-bit elements in a warp: lane l has elements
/// 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t word) {
  std::uint32_t turned;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
  return turned;
}

template <class C>
struct Values {
  using Instance = C;
  using T = typename C::T;
  static constexpr int kRuns = 4;  ///< of 64 dims
  const Launch& launch;
  Shared<C>& shared;
  const int warp;  ///< of the eight
  const int lane;
  const int g = lane / 4;
  const int t = lane % 4;
  float scale = 0.0F;  ///< of maxima, to log2
  int slab = 0;        ///< slabs so far, of all segments
  int segments = 0;    ///< so far
  float o[kRuns][C::kColumns / 2];

  /// The dim of value h of run `run`.
  __device__ __forceinline__ int dim_of(int run, int h) const {
    return warp / 4 * 256 + run * 64 + warp % 4 * 16 + g + 8 * h;
  }
  /// The column of number `k` of the thread.
  __device__ __forceinline__ int column_of(int k) const { return k / 2 * 8 + 2 * t + k % 2; }
  /// Tells that the warp needs something no more.
  __device__ __forceinline__ void release(Barrier* barrier) const { arrive_as_warp(barrier, lane); }

  /// Begins a segment.
  __device__ __forceinline__ void begin(const ColumnsSegment& /*segment*/) {}

  /// Multiplies the outputs so far with the factors of their columns.
  __device__ __forceinline__ void rescale(const float* keep) {
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
      const float factor = keep[column_of(k)];
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        o[run][k / 2 * 4 + k % 2] *= factor;
        o[run][k / 2 * 4 + 2 + k % 2] *= factor;
      }
    }
  }

  /// Adds the weighted values of a slab.
  __device__ __forceinline__ void multiply(int stage, int buffer) {
    const std::uint32_t values = operand_base(shared_address(shared.latents[0]), C::kAtomBytes) +
                                 stage * (C::kSlabBytes >> 4) +
                                 (warp / 4 * (256 * 2 / kPieceBytes) * C::kAtomBytes >> 4);
    const std::uint32_t weights = operand_base(shared_address(shared.weights[0]), C::kWeightAtom) +
                                  buffer * (C::kWeightBytes >> 4);
#pragma unroll
    for (int run = 0; run < kRuns; ++run) fence_registers(o[run]);
    fence_products();
#pragma unroll
    for (int tile = 0; tile < C::kTiles; ++tile) {
      const std::uint64_t b = operand_at<C::kWeightGroup, C::kWeightSwizzle>(
          weights, tile * kTileTokens * C::kWeightRow);
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
        const int step = tile * C::kTileBytes + run * (64 * 2 / kPieceBytes) * C::kAtomBytes;
        Wgmma<T, C::kColumns>::ss_mn(
            o[run], operand_at<C::kGroupBytes, Swizzle::bytes_64>(values, step), b, 1);
      }
      commit_products();
    }
    // Each tile is given back as soon as it has been multiplied.
    static_assert(C::kTiles == 4);
    wait_products<3>();
    release(&shared.tile_empty[stage][0]);
    wait_products<2>();
    release(&shared.tile_empty[stage][1]);
    wait_products<1>();
    release(&shared.tile_empty[stage][2]);
    wait_products<0>();
    release(&shared.tile_empty[stage][3]);
#pragma unroll
    for (int run = 0; run < kRuns; ++run) fence_registers(o[run]);
  }

  /// Adds the weighted values of a slab without those of weight 0, which may not be finite.
  __device__ __forceinline__ void weigh_apart(const char* latents, const char* weights) {
#pragma unroll
    for (int i = 0; i < kRuns * (C::kColumns / 8); ++i) {
      load_later();
      const int run = i % kRuns;
      const int first = i / kRuns;  // few columns at a time, because registers are few
#pragma unroll 1
      for (int token = 0; token < C::kTokens; ++token) {
        float value[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          int dim = dim_of(run, h);
          asm volatile("" : "+r"(dim));  // no address is kept over the loop
          const auto bits = *reinterpret_cast<const std::uint16_t*>(
              latents + chunked_bytes(C::kRowBytes, token, dim * 2));
          value[h] = columns::unpack<T>(bits).x;
        }
#pragma unroll
        for (int n = first; n < first + 1; ++n) {
          int column = n * 8 + 2 * t;
          asm volatile("" : "+r"(column));
          const float2 weight = columns::unpack<T>(*reinterpret_cast<const std::uint32_t*>(
              weights + chunked_bytes(C::kWeightRow, token, column * 2)));
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float* const to = o[run] + n * 4 + 2 * h;
            to[0] = weight.x != 0.0F ? fmaf(weight.x, value[h], to[0]) : to[0];
            to[1] = weight.y != 0.0F ? fmaf(weight.y, value[h], to[1]) : to[1];
          }
        }
      }
    }
  }

  /// Adds a slab.
  __device__ __forceinline__ void step() {
    const int buffer = slab % C::kWeightBuffers;
    const int stage = slab % C::kStages;
    wait(&shared.latents_full[stage], (slab / C::kStages) & 1);
    wait(&shared.weights_full[buffer], (slab / C::kWeightBuffers) & 1);
    const int flags = __shfl_sync(~0U, lane == 0 ? shared.flags[buffer] : 0, 0);
    if ((flags & kRescale) != 0) rescale(shared.keep[buffer]);
    if ((flags & kApart) != 0) {
      weigh_apart(shared.latents[stage], shared.weights[buffer]);
      for (Barrier& tile : shared.tile_empty[stage]) release(&tile);
    } else {
      multiply(stage, buffer);
    }
    release(&shared.weights_empty[buffer]);
    ++slab;
  }

  /// Writes the outputs of a whole item.
  __device__ __forceinline__ void write(const ColumnsSegment& segment) {
    const ColumnsParams& p = launch.params;
    const int first = first_column<C>(segment);
    const float value_scale = scale_of<C>(p.scales.value);
#pragma unroll
    for (int n = 0; n < C::kColumns / 8; ++n) {
      load_later();
      float factor[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = n * 8 + 2 * t + e;
        float sum = shared.sum[column];
        if (p.sinks != nullptr && first + column < segment.columns) {
          const int head =
              columns::place_of(launch, segment.q_begin, segment.head, first + column).head;
          sum = columns::with_sink<C>(sum, shared.maximum[column], p.sinks[head], scale);
        }
        factor[e] = sum > 0.0F ? value_scale / sum : 0.0F;
      }
      const int column = first + n * 8 + g;  // of this lane after the exchange
      const bool is_in = column < segment.columns;
      const columns::Place place =
          columns::place_of(launch, segment.q_begin, segment.head, is_in ? column : 0);
      char* const to = static_cast<char*>(p.out) + place.token * p.out_token_stride +
                       place.head * (C::kDim * 2) + (warp / 4 * 256 + warp % 4 * 16 + 2 * t) * 2;
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float* const from = o[run] + n * 4 + 2 * h;
          const std::uint32_t word =
              transpose_matrix(columns::pack<T>(from[0] * factor[0], from[1] * factor[1]));
          if (is_in) *reinterpret_cast<std::uint32_t*>(to + (run * 64 + h * 8) * 2) = word;
        }
      }
    }
    write_log_sums(segment);
  }

  /// Writes the log-sum-exps of a whole item.
  __device__ __forceinline__ void write_log_sums(const ColumnsSegment& segment) {
    const ColumnsParams& p = launch.params;
    const int thread = warp * 32 + lane;
    const int column = first_column<C>(segment) + thread;
    if (p.lse == nullptr || thread >= C::kColumns || column >= segment.columns) return;
    const columns::Place place = columns::place_of(launch, segment.q_begin, segment.head, column);
    const float* const sink = p.sinks != nullptr ? p.sinks + place.head : nullptr;
    float sum = shared.sum[thread];
    const float maximum = shared.maximum[thread];
    if (sink != nullptr) sum = columns::with_sink<C>(sum, maximum, *sink, scale);
    p.lse[place.token * p.limits.num_q_heads + place.head] =
        columns::log_sum_exp<C>(sum, maximum, scale, sink);
  }

  /// Writes the maxima and sums of a part of an item.
  __device__ __forceinline__ void write_sums(const ColumnsSegment& segment) {
    const int thread = warp * 32 + lane;
    if (thread < min(C::kColumns, segment.columns - first_column<C>(segment))) {
      __stcg(&launch.max_sum()[segment.partial + thread],
             make_float2(shared.maximum[thread], shared.sum[thread]));
    }
  }

  /// Writes the outputs of a part of an item, not normalised.
  __device__ __forceinline__ void write_part(const ColumnsSegment& segment) {
    const int count = segment.columns - first_column<C>(segment);
    write_sums(segment);
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
      if (column_of(k) >= count) continue;
      float* const to = launch.outputs() +
                        (std::int64_t{segment.partial} + column_of(k)) * C::kDim + dim_of(0, 0);
#pragma unroll
      for (int run = 0; run < kRuns; ++run) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          __stcg(to + run * 64 + h * 8, o[run][k / 2 * 4 + 2 * h + k % 2]);
        }
      }
    }
  }
};

/// Computes all segments of the thread block.
template <class Its>
__device__ __forceinline__ void run_values(Its& its, int words) {
  using C = typename Its::Instance;
  wait_for_previous_kernel();
  its.scale = maximum_scale<C>(its.launch);
  while (true) {
    const ColumnsSegment first = columns::segment_of(words);
    const int slabs = first.slabs;
    if (slabs == 0) return;
    its.begin(first);
#pragma unroll
    for (int run = 0; run < Its::kRuns; ++run) {
#pragma unroll
      for (int i = 0; i < C::kColumns / 2; ++i) its.o[run][i] = 0.0F;
    }
#pragma unroll 1
    for (int i = 0; i < slabs; ++i) its.step();
    wait(&its.shared.result_full, its.segments & 1);
    const ColumnsSegment segment = columns::segment_of(words);
    if (segment.partial < 0) {
      its.write(segment);
    } else {
      its.write_part(segment);
    }
    its.release(&its.shared.result_empty);
    ++its.segments;
    if (segment.next < 0) return;
    words = columns::load_words(its.launch, segment.next, its.lane);
  }
}

}  // namespace kvarena::kernels::latent
