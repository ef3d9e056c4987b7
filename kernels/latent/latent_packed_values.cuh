#pragma once

/// @file
/// The warpgroups of values over packed latents (latent_packed.cuh). A warp has half of a run of
/// 128 dims of V, and thread (g, t) of it eight dims from 8g on: two of each of four products,
/// because the order of a product's rows is free. Included by latent.cuh.

#include "kernels/latent/latent_packed.cuh"
#include "kernels/latent/latent_values.cuh"

namespace kvarena::kernels::latent {

template <class C>
struct PackedValues : Values<C> {
  using Base = Values<C>;
  using Instance = C;
  using T = typename C::T;
  using Base::column_of;
  using Base::g;
  using Base::kRuns;  // products, of 64 dims
  using Base::lane;
  using Base::launch;
  using Base::o;
  using Base::release;
  using Base::rescale;
  using Base::scale;
  using Base::shared;
  using Base::slab;
  using Base::t;
  using Base::warp;
  /// Tiles that are in registers at once.
  static constexpr int kAhead = C::kColumns == 16 ? 2 : 1;
  int first_masked = 0;  ///< slab of the segment

  /// Begins a segment.
  __device__ __forceinline__ void begin(const ColumnsSegment& segment) {
    first_masked = slab + max(unmasked_tokens(segment) - segment.first_token, 0) / C::kTokens;
  }

  /// The first dim of the thread.
  __device__ __forceinline__ int first_dim() const { return warp * (C::kDim / 8) + g * 8; }

  /// Loads a tile of a slab as the operands of the four products: rows of dims, and tokens 2t, 2t +
  /// 1, 2t + 8 and 2t + 9.
  __device__ __forceinline__ void load(std::uint32_t (&a)[kRuns][4], int stage, int tile) const {
    const char* const from =
        shared.latents[stage] + (tile * kTileTokens + 2 * t) * kLatentFp8Bytes + first_dim();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* const at = from + i * (8 * kLatentFp8Bytes);
      const auto x = *reinterpret_cast<const uint2*>(at);
      const auto y = *reinterpret_cast<const uint2*>(at + kLatentFp8Bytes);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t its = j == 0 ? x.x : x.y;
        const std::uint32_t next = j == 0 ? y.x : y.y;
        const std::uint32_t first = __byte_perm(its, next, 0x5140);  // two dims of both tokens
        const std::uint32_t second = __byte_perm(its, next, 0x7362);
        a[2 * j][2 * i] = widen_low(first);
        a[2 * j][2 * i + 1] = widen_high(first);
        a[2 * j + 1][2 * i] = widen_low(second);
        a[2 * j + 1][2 * i + 1] = widen_high(second);
      }
    }
  }

  /// The ratios of the warp's run.
  __device__ __forceinline__ const __half* ratios(int buffer) const {
    return shared.ratios[buffer][warp / 2];
  }

  /// Begins to add the weighted values of a tile, a group of products.
  __device__ __forceinline__ void multiply(std::uint32_t (&a)[kRuns][4], int buffer, int tile) {
    const std::uint32_t weights = operand_base(shared_address(shared.weights[0]), C::kWeightAtom) +
                                  buffer * (C::kWeightBytes >> 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto factor = *reinterpret_cast<const std::uint32_t*>(
          ratios(buffer) + tile * kTileTokens + 2 * t + 8 * i);
#pragma unroll
      for (int k = 0; k < 2 * kRuns; ++k) {
        std::uint32_t& its = a[k / 2][2 * i + k % 2];
        its = multiply_pairs<__half>(its, factor);
      }
    }
    fence_operands(a);
    fence_products();
    const std::uint64_t b =
        operand_at<C::kWeightGroup, C::kWeightSwizzle>(weights, tile * kTileTokens * C::kWeightRow);
#pragma unroll
    for (int i = 0; i < kRuns; ++i) Wgmma<__half, C::kColumns>::rs_mn(o[i], a[i], b);
    commit_products();
  }
  __device__ __forceinline__ void fence_outputs() {
#pragma unroll
    for (int i = 0; i < kRuns; ++i) fence_registers(o[i]);
  }

  /// Adds the weighted values of a slab without those of weight 0, which may not be finite.
  __device__ __forceinline__ void weigh_apart(int stage, int buffer) {
#pragma unroll
    for (int n = 0; n < C::kColumns / 8; ++n) {
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
        load_later();
#pragma unroll 1
        for (int token = 0; token < C::kTokens; ++token) {
          int byte = token * kLatentFp8Bytes + first_dim() + 2 * i;
          asm volatile("" : "+r"(byte));  // no address is kept over the loop
          const __half2 ratio = __half2half2(ratios(buffer)[token]);
          const float2 value = columns::unpack<__half>(multiply_pairs<__half>(
              widen_low(*reinterpret_cast<const std::uint16_t*>(shared.latents[stage] + byte)),
              reinterpret_cast<const std::uint32_t&>(ratio)));
          int its = chunked_bytes(C::kWeightRow, token, (n * 8 + 2 * t) * 2);
          asm volatile("" : "+r"(its));
          const float2 weight = columns::unpack<__half>(
              *reinterpret_cast<const std::uint32_t*>(shared.weights[buffer] + its));
          float* const to = o[i] + n * 4;
          to[0] = weight.x != 0.0F ? fmaf(weight.x, value.x, to[0]) : to[0];
          to[1] = weight.y != 0.0F ? fmaf(weight.y, value.x, to[1]) : to[1];
          to[2] = weight.x != 0.0F ? fmaf(weight.x, value.y, to[2]) : to[2];
          to[3] = weight.y != 0.0F ? fmaf(weight.y, value.y, to[3]) : to[3];
        }
      }
    }
  }

  /// Adds a slab. Its first tiles are converted before the weights are there.
  __device__ __forceinline__ void step() {
    const int buffer = slab % C::kWeightBuffers;
    const int stage = slab % C::kStages;
    const int weights_parity = (slab / C::kWeightBuffers) & 1;
    std::uint32_t a[kAhead][kRuns][4];
    wait(&shared.latents_full[stage], (slab / C::kStages) & 1);
    // Tokens behind the row are cleared first.
    if (slab >= first_masked) wait(&shared.weights_full[buffer], weights_parity);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) load(a[i], stage, i);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) fence_operands(a[i]);
    wait(&shared.weights_full[buffer], weights_parity);
    const int flags = __reduce_max_sync(~0U, shared.flags[buffer]);
    if ((flags & kRescale) != 0) rescale(shared.keep[buffer]);
    if ((flags & kApart) != 0) {
      weigh_apart(stage, buffer);
      for (Barrier& tile : shared.tile_empty[stage]) release(&tile);
    } else {
      fence_outputs();
#pragma unroll
      for (int i = 0; i < C::kTiles; ++i) {
        if (i >= kAhead) {
          wait_products<kAhead - 1>();
          load(a[i % kAhead], stage, i);
        }
        multiply(a[i % kAhead], buffer, i);
        // Not before: an arrival does not wait for loads that nothing has used, and the next copy
        // would overtake them.
        release(&shared.tile_empty[stage][i]);
      }
      wait_products<0>();
      fence_outputs();
    }
    release(&shared.weights_empty[buffer]);
    ++slab;
  }

  /// Writes the outputs of a whole item.
  __device__ __forceinline__ void write(const ColumnsSegment& segment) {
    const ColumnsParams& p = launch.params;
    const int first = first_column<C>(segment);
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
      const int column = first + column_of(k);
      if (column >= segment.columns) continue;
      const columns::Place place = columns::place_of(launch, segment.q_begin, segment.head, column);
      float sum = shared.sum[column_of(k)];
      if (p.sinks != nullptr) {
        sum = columns::with_sink<C>(sum, shared.maximum[column_of(k)], p.sinks[place.head], scale);
      }
      const float factor = sum > 0.0F ? 1.0F / sum : 0.0F;
      char* const to = static_cast<char*>(p.out) + place.token * p.out_token_stride +
                       place.head * (C::kDim * 2) + first_dim() * 2;
      const int i = k / 2 * 4 + k % 2;
      std::uint32_t words[kRuns];
#pragma unroll
      for (int j = 0; j < kRuns; ++j) {
        words[j] = columns::pack<T>(o[j][i] * factor, o[j][i + 2] * factor);
      }
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    }
    this->write_log_sums(segment);
  }

  /// Writes the outputs of a part of an item, not normalised.
  __device__ __forceinline__ void write_part(const ColumnsSegment& segment) {
    this->write_sums(segment);
#pragma unroll
    for (int k = 0; k < C::kSums; ++k) {
      load_later();
      if (column_of(k) >= segment.columns - first_column<C>(segment)) continue;
      float* const to =
          launch.outputs() + (std::int64_t{segment.partial} + column_of(k)) * C::kDim + first_dim();
      const int i = k / 2 * 4 + k % 2;
#pragma unroll
      for (int j = 0; j < kRuns; j += 2) {
        __stcg(reinterpret_cast<float4*>(to + 2 * j),
               make_float4(o[j][i], o[j][i + 2], o[j + 1][i], o[j + 1][i + 2]));
      }
    }
  }
};

}  // namespace kvarena::kernels::latent
