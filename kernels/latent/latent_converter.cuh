#pragma once

/// @file
/// The warpgroup that converts latents of a pool in 8 bits to the bf16 operand of the products. The
/// ring has tiles of 16 tokens as they lie in the pool. Eight lanes take the same chunk of eight
/// tokens, so neither their loads nor their stores meet in a bank. latent_fp8 is converted by
/// latent_teams.cuh. Included by latent.cuh.

#include "kernels/latent/latent_config.cuh"

namespace kvarena::kernels::latent {

/// Returns two bf16 of two e4m3 and a factor, rounded once.
__device__ __forceinline__ std::uint32_t widen(std::uint32_t pair, float factor) {
  const __half2_raw halves =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair), __NV_E4M3);
  const float2 x = __half22float2(__half2(halves));
  return columns::pack<__nv_bfloat16>(x.x * factor, x.y * factor);
}

template <class C>
struct Converter {
  static_assert(!std::is_same_v<typename C::Pool, columns::LatentFp8>);
  static constexpr int kChunks = C::kKeyDim / 16;  ///< of 16 elements of a token in 8 bits
  /// Chunks of eight tokens: what eight lanes convert at a time.
  static constexpr int kUnits = 2 * kChunks;
  static constexpr int kUnitsAtOnce = 16;  ///< of the warpgroup
  static constexpr int kRounds = (kUnits + kUnitsAtOnce - 1) / kUnitsAtOnce;

  const Launch& launch;
  Shared<C>& shared;
  const int warp;  ///< of the four
  const int lane;
  int slab = 0;  ///< slabs so far, of all segments
  RingPlace<C> ring = {};
  int fills = 0;  ///< parities of the times that the tiles of all stages were filled

  /// The place of a unit of the warpgroup's round `round` that the lane has a part of.
  __device__ __forceinline__ int unit_of(int round) const {
    return round * kUnitsAtOnce + warp * 4 + lane / 8;
  }
  __device__ __forceinline__ bool has_unit(int round) const {
    return kUnits % kUnitsAtOnce == 0 || unit_of(round) < kUnits;
  }
  /// Its token in the tile, and its chunk of the token.
  __device__ __forceinline__ int token_of(int round) const {
    return unit_of(round) / kChunks * 8 + lane % 8;
  }
  __device__ __forceinline__ int chunk_of(int round) const { return unit_of(round) % kChunks; }

  /// Stores sixteen elements.
  __device__ __forceinline__ void store(char* to, int round, const std::uint32_t (&out)[8]) const {
    const int at = chunked_bytes(C::kRowBytes, token_of(round), chunk_of(round) * 2 * kChunkBytes);
    *reinterpret_cast<uint4*>(to + at) = make_uint4(out[0], out[1], out[2], out[3]);
    // The second chunk of a pair is beside the first one.
    *reinterpret_cast<uint4*>(to + (at ^ kChunkBytes)) = make_uint4(out[4], out[5], out[6], out[7]);
  }

  /// Loads sixteen elements of a tile of the ring.
  __device__ __forceinline__ uint4 load(const char* from, int round) const {
    return *reinterpret_cast<const uint4*>(
        from + chunked_bytes(C::kPoolRowBytes, token_of(round), chunk_of(round) * kChunkBytes));
  }

  /// Converts a tile, which may be in its own place: all of it is loaded before it is written.
  __device__ __forceinline__ void convert(const char* from, char* to) const {
    uint4 words[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      words[i] = has_unit(i) ? load(from, i) : make_uint4(0, 0, 0, 0);
    }
    if constexpr (C::kHalves) sync_named<kConverterBarrier>(128);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const std::uint32_t in[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
      std::uint32_t out[8];
#pragma unroll
      for (int k = 0; k < 8; ++k) out[k] = widen(in[k / 2] >> (16 * (k % 2)) & 0xFFFF, 1.0F);
      if (has_unit(i)) store(to, i, out);
    }
  }

  /// Converts the next tile of the ring.
  __device__ __forceinline__ void convert_ring(char* to) {
    wait(&shared.ring_full[ring.at], ring.round);
    convert(shared.ring + ring.at * C::kPoolTileBytes, to);
    arrive_as_warp(&shared.ring_empty[ring.at], lane);
    ring.advance();
  }

  /// Converts the tiles of a slab that have tokens.
  __device__ __forceinline__ void step(const ColumnsSegment& segment, int slab_token) {
    const int stage = slab % C::kStages;
    const int parity = (slab / C::kStages) & 1;
#pragma unroll 1
    for (int tile = 0; tile < C::kTiles; ++tile) {
      wait(&shared.tile_empty[stage][tile], parity ^ 1);
      if (slab_token + tile * kTileTokens >= segment.seq_len) continue;
      char* const to = shared.latents[stage] + tile * C::kTileBytes;
      if constexpr (C::kHalves) {
        const int place = stage * C::kTiles + tile;
        wait(&shared.pool_full[stage][tile], fills >> place & 1);
        fills ^= 1 << place;
        convert(to, to);
      } else {
        convert_ring(to);
      }
    }
    fence_async_proxy();
    arrive(&shared.latents_full[stage]);
    ++slab;
  }

  /// Converts all segments of the thread block.
  __device__ __forceinline__ void run(int words) {
    while (true) {
      const ColumnsSegment segment = columns::segment_of(words);
      if (segment.slabs == 0) return;
      const int next = segment.next >= 0 ? columns::load_words(launch, segment.next, lane) : -1;
#pragma unroll 1
      for (int i = 0; i < segment.slabs; ++i) step(segment, segment.first_token + i * C::kTokens);
      if (segment.next < 0) return;
      words = next;
    }
  }
};

}  // namespace kvarena::kernels::latent
