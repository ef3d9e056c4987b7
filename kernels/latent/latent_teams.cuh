#pragma once

/// @file
/// The warps that convert latent_fp8 for the instance of 64 columns: two teams that have every
/// other tile of a slab each. One team is the last warpgroup, the other one is the three warps
/// beside the producer. A tile is copied to the end of its place and becomes bf16 from the front
/// on, eight tokens at a time: a team loads them all before it writes over them. Included by
/// latent.cuh.

#include "kernels/latent/latent_converter.cuh"

#include <cstddef>

namespace kvarena::kernels::latent {

/// A warp of a team of `kWarps`.
template <class C, int kWarps>
struct TeamConverter {
  static constexpr int kTeam = kWarps == 4 ? 1 : 0;  ///< its first tile of a slab
  static constexpr int kBarrier = kWarps == 4 ? kConverterBarrier : kSmallTeamBarrier;
  // What a warp converts at a time: four chunks of 16 elements of eight tokens, or as many chunks
  // of positional elements. Eight lanes have the same chunk of eight tokens, so neither their loads
  // nor their stores meet in a bank.
  static constexpr int kValueUnits = kLatentFp8ValueDim / 64;  ///< of eight tokens
  static constexpr int kUnits = kValueUnits + 2;
  static constexpr int kUnitBytes = 2 * C::kAtomBytes;  ///< of a converted one
  static constexpr int kRounds = (kUnits + kWarps - 1) / kWarps;
  // The first eight tokens, converted, do not reach the other eight.
  static_assert(C::kGroupBytes <= C::kPoolTileAt + kAtomTokens * C::kPoolRowBytes);

  const Launch& launch;
  Shared<C>& shared;
  const int warp;  ///< of the team
  const int lane;
  const int load_from = load_at();
  const int store_to = store_at();
  int slab = 0;   ///< slabs so far, of all segments
  int fills = 0;  ///< parities of the times that the tiles of all stages were filled

  /// Where a unit's bytes are, of unit `warp`; the others follow at equal distances.
  __device__ __forceinline__ int load_at() const {
    return lane % 8 * C::kPoolRowBytes + (warp * 4 + lane / 8) * kChunkBytes;
  }
  __device__ __forceinline__ int store_at() const {
    return chunked_bytes(C::kRowBytes, lane % 8, (warp * 4 + lane / 8) * 2 * kChunkBytes);
  }
  /// Where a positional unit goes: the place of unit 0 of it, without its number.
  __device__ __forceinline__ int position_at() const {
    return chunked_bytes(C::kRowBytes, lane % 8, lane / 8 * kChunkBytes);
  }

  /// Converts the eight tokens at `from` to the operand at `to`.
  __device__ __forceinline__ void convert(const char* from, char* to) const {
    uint4 words[kRounds];
    float scale[kRounds];
    const char* const its = from + load_from;
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int unit = i * kWarps + warp;
      const bool is_value = (i + 1) * kWarps <= kValueUnits || unit < kValueUnits;
      if (is_value || unit < kUnits) {
        words[i] = *reinterpret_cast<const uint4*>(its + i * kWarps * 4 * kChunkBytes +
                                                   (is_value ? 0 : kChunkBytes));
      }
      if (i * kWarps < kValueUnits && is_value) {
        scale[i] = *reinterpret_cast<const float*>(from + lane % 8 * C::kPoolRowBytes +
                                                   kLatentFp8ScalesAt + unit / 2 * 4);
      }
    }
    sync_named<kBarrier>(kWarps * 32);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int unit = i * kWarps + warp;
      const bool is_value = (i + 1) * kWarps <= kValueUnits || unit < kValueUnits;
      if (i * kWarps < kValueUnits && is_value) {
        const std::uint32_t in[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          std::uint32_t out[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            out[k] = widen(in[half * 2 + k / 2] >> (16 * (k % 2)) & 0xFFFF, scale[i]);
          }
          // The second chunk of a pair is beside the first one.
          *reinterpret_cast<uint4*>(to + (store_to ^ (half * kChunkBytes)) +
                                    i * kWarps * kUnitBytes) =
              make_uint4(out[0], out[1], out[2], out[3]);
        }
      } else if ((i + 1) * kWarps > kValueUnits && unit < kUnits) {
        *reinterpret_cast<uint4*>(to + position_at() + (kValueUnits + unit) * C::kAtomBytes) =
            words[i];
      }
    }
  }

  /// Converts the team's tiles of a slab that have tokens.
  __device__ __forceinline__ void step(int seq_len, int slab_token) {
    const int stage = slab % C::kStages;
    const int parity = (slab / C::kStages) & 1;
#pragma unroll 1
    for (int tile = kTeam; tile < C::kTiles; tile += 2) {
      wait(&shared.tile_empty[stage][tile], parity ^ 1);
      if (slab_token + tile * kTileTokens >= seq_len) continue;
      const int place = stage * C::kTiles + tile;
      wait(&shared.pool_full[stage][tile], fills >> place & 1);
      fills ^= 1 << place;
      char* const to = shared.latents[stage] + tile * C::kTileBytes;
#pragma unroll 1
      for (int group = 0; group < 2; ++group) {
        convert(to + C::kPoolTileAt + group * (kAtomTokens * C::kPoolRowBytes),
                to + group * C::kGroupBytes);
      }
    }
    fence_async_proxy();
    arrive(&shared.latents_full[stage]);
    ++slab;
  }

  /// Converts all segments of the thread block.
  __device__ __forceinline__ void run(int words) {
    while (true) {
      const int slabs = field(words, offsetof(ColumnsSegment, slabs));
      const int seq_len = field(words, offsetof(ColumnsSegment, seq_len));
      int token = field(words, offsetof(ColumnsSegment, first_token));
#pragma unroll 1
      for (const int end = slab + slabs; slab < end; token += C::kTokens) step(seq_len, token);
      const int next = field(words, offsetof(ColumnsSegment, next));
      if (next < 0) return;
      words = columns::load_words(launch, next, lane);
    }
  }

 private:
  /// Returns a number of the segment that the lanes hold.
  static __device__ __forceinline__ int field(int words, std::size_t offset) {
    return __shfl_sync(~0U, words, static_cast<int>(offset / 4));
  }
};

}  // namespace kvarena::kernels::latent
