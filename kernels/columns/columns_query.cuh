#pragma once

/// @file
/// The queries and outputs of the columns kernel, in the pieces of hopper_operands.cuh.

#include "kernels/columns/columns_config.cuh"
#include "kernels/columns/columns_softmax.cuh"
#include "kernels/common/hopper_operands.cuh"

namespace kvarena::kernels::columns {

/// The queries of a thread's two columns: first as loaded, after arrange() operands.
template <class C>
struct Query {
  static constexpr int kPieces = C::kKeyDim / 32;
  QueryRegisters<C::kKeyDim> words;

  /// Loads columns `column` and column + 8 of a segment; those past its last are zeros.
  __device__ __forceinline__ void load(const Launch& launch, const ColumnsSegment& segment,
                                       int column, int t) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = column + 8 * h;
      const bool is_in = at < segment.columns;
      Place place = place_of(launch, segment.q_begin, segment.head, at);
      if (C::kHasTiles && segment.q_len == 0 && is_in)
        place.token = __ldg(launch.tile_tokens + place.token);
      const ColumnsParams& p = launch.params;
      load_query_row<C::kKeyDim>(
          words, h, static_cast<const char*>(p.q) + bytes_to<C::kKeyDim>(place, p.q_token_stride),
          t, is_in);
    }
  }
  /// Rounds loaded queries of bf16 to f16, each column divided by the power of two that is returned
  /// in `power`.
  __device__ __forceinline__ void narrow(const Launch& launch, float (&power)[2]) {
    power[0] = power[1] = 1.0F;
    if (!launch.constants.is_bf16) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) power[h] = narrow_query_row<C::kKeyDim>(words, h);
  }
  __device__ __forceinline__ void arrange(int t) { transpose_query<C::kKeyDim>(words, t); }
  /// Copies fragment `step` (16 dims) in the order of the products' operand.
  __device__ __forceinline__ void fragment(std::uint32_t (&a)[4], int step) const {
    query_operand<C::kKeyDim>(a, words, step);
  }
  /// Stores the chunks as an operand in shared memory, in the order of the pool. `to` is the place
  /// of this warp's 16 columns.
  __device__ __forceinline__ void store_operand(char* to, int g, int t) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        const std::uint32_t(&y)[4] = words[h * kPieces + j];
        *reinterpret_cast<uint4*>(to + h * C::kKeyGroupBytes + j * 512 + g * 64 +
                                  ((t ^ (g >> 1 & 3)) << 4)) = make_uint4(y[0], y[1], y[2], y[3]);
      }
    }
  }
};

/// Normalises and writes column `h` of a thread: the output and the log-sum-exp. Every lane of the
/// quad calls it; nothing is written unless `is_in`.
template <class C>
__device__ __forceinline__ void write_column(const Launch& launch, const Place& place, bool is_in,
                                             const float (&o)[C::kDim / 2], int h, float maximum,
                                             float sum, float scale, int t) {
  const ColumnsParams& p = launch.params;
  const float* const sink = p.sinks != nullptr ? p.sinks + (is_in ? place.head : 0) : nullptr;
  if (sink != nullptr) sum = with_sink<C>(sum, maximum, *sink, scale);
  const int kv_head = C::kIsFp8 ? place.head / launch.constants.group : 0;
  const float factor =
      sum > 0.0F ? inverse_fast(sum) * stored_scale<C>(launch, p.scales.value, kv_head) : 0.0F;
  // An element of either type has 16 bits.
  auto* const to = reinterpret_cast<__half*>(static_cast<char*>(p.out) +
                                             bytes_to<C::kDim>(place, p.out_token_stride));
  constexpr int kPieces = C::kDim / 32;
  std::uint32_t words[kPieces][4];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = (i * 4 + j) * 4 + 2 * h;
      words[i][j] = pack_out<C>(launch, o[at] * factor, o[at + 1] * factor);
    }
  }
  transpose_quads<kPieces>(words, t);
#pragma unroll
  for (int i = 0; i < kPieces; ++i) store_piece(to + i * 32 + t * 8, words[i], is_in);
#pragma unroll
  for (int i = kPieces * 4; i < C::kDim / 8; ++i) {  // where D is no multiple of 32
    const int at = i * 4 + 2 * h;
    store_word(to + i * 8 + t * 2, pack_out<C>(launch, o[at] * factor, o[at + 1] * factor), is_in);
  }
  if (p.lse != nullptr) {
    const float lse = log_sum_exp<C>(sum, maximum, scale, sink);
    store_word(p.lse + place.token * p.limits.num_q_heads + place.head, __float_as_uint(lse),
               is_in && t == 0);
  }
}

}  // namespace kvarena::kernels::columns
