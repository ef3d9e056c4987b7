#pragma once

/// @file
/// The producer warp of the latent kernel. It copies the slabs of the thread block's segments into
/// shared memory, first to last. A tile of 16 tokens is one bulk copy, and lane `i` copies tile `i`
/// of a slab. Tokens older than the query tokens are copied before the kernel in front has
/// completed. Included by latent.cuh.

#include "kernels/columns/columns_producer.cuh"
#include "kernels/latent/latent_config.cuh"

namespace kvarena::kernels::latent {

template <class C>
struct Producer {
  /// Slabs whose table entries the lanes hold.
  static constexpr int kSlabsAhead = 32 / C::kTiles;

  const Launch& launch;
  Shared<C>& shared;
  const int lane;
  int slab = 0;             ///< slabs so far, of all segments
  bool has_waited = false;  ///< for the kernel in front
  RingPlace<C> ring = {};

  /// Returns the table entry's index of a tile. It is exact for tile < 2^32 / tiles_per_block.
  __device__ __forceinline__ unsigned table_index(int tile) const {
    return static_cast<unsigned>(static_cast<unsigned>(tile) * launch.constants.block_of_tile >>
                                 32);
  }
  /// Returns this lane's block of the kSlabsAhead slabs from `first` of a segment on.
  __device__ __forceinline__ int load_entries(const ColumnsSegment& segment, int first) const {
    const int at = first + lane / C::kTiles;
    const int token = segment.first_token + (at * C::kTiles + lane % C::kTiles) * kTileTokens;
    if (at >= segment.slabs || token >= segment.seq_len) return 0;
    const BlockId* const table =
        launch.params.block_tables + segment.table_row * launch.params.table_stride;
    return __ldg(reinterpret_cast<const int*>(table + table_index(token / kTileTokens)));
  }
  /// Waits for the kernel in front, then lets the next one begin.
  __device__ __forceinline__ void follow() {
    wait_for_previous_kernel();
    let_next_kernel_begin();
    has_waited = true;
  }
  /// Copies the tiles of the first `count` lanes to the ring.
  __device__ __forceinline__ void fill_ring(const char* from, int count, std::uint64_t hint) {
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      wait(&shared.ring_empty[ring.at], ring.round ^ 1);
      __syncwarp();
      if (lane == i) {
        arrive_and_expect(&shared.ring_full[ring.at], C::kPoolTileBytes);
        copy_bulk(shared_address(shared.ring) + ring.at * C::kPoolTileBytes, from,
                  C::kPoolTileBytes, &shared.ring_full[ring.at], hint);
      }
      ring.advance();
    }
  }
  /// Copies them to the operand, or to its place, where they are converted. Tiles are given back
  /// one after another.
  __device__ __forceinline__ void fill_stage(const char* from, int count, std::uint64_t hint) {
    constexpr bool kConverts = C::kConverts;
    const int stage = slab % C::kStages;
#pragma unroll 1
    for (int i = 0; i < C::kTiles; ++i) {
      wait(&shared.tile_empty[stage][i], ((slab / C::kStages) & 1) ^ 1);
      if (!kConverts && i == 0 && lane == 0) {
        expect(&shared.latents_full[stage], count * C::kTileBytes);
      }
      __syncwarp();
      if (lane != i || i >= count) continue;
      Barrier* full = &shared.latents_full[stage];
      if constexpr (kConverts) {
        full = &shared.pool_full[stage][i];
        arrive_and_expect(full, C::kPoolTileBytes);
      }
      copy_bulk(shared_address(shared.latents[stage]) + i * C::kTileBytes + C::kPoolTileAt, from,
                C::kPoolTileBytes, full, hint);
    }
    // Not before all tiles are empty: those without tokens are cleared.
    if (!kConverts) arrive_as_warp(&shared.latents_full[stage], lane);
  }
  /// Copies the tiles of slab `at` of a segment that have tokens.
  __device__ __forceinline__ void copy(const ColumnsSegment& segment, int at, int block,
                                       std::uint64_t hint) {
    const int token = segment.first_token + (at * C::kTiles + lane) * kTileTokens;
    const bool has_tokens = lane < C::kTiles && token < segment.seq_len;
    const int count = __popc(__ballot_sync(~0U, has_tokens));
    const int tile = token / kTileTokens;
    const unsigned within = tile - table_index(tile) * launch.constants.tiles_per_block;
    const char* const from = static_cast<const char*>(launch.params.key) +
                             block * launch.params.block_stride + within * C::kPoolTileBytes;
    if constexpr (C::kConverts && !C::kHalves) {
      fill_ring(from, count, hint);
    } else {
      fill_stage(from, count, hint);
    }
  }

  /// Copies all segments of the thread block. The entries of the next slabs are loaded while the
  /// current ones are copied, and segments are loaded two ahead.
  __device__ __forceinline__ void run(int words) {
    ColumnsSegment segment = columns::segment_of(words);
    int held = load_entries(segment, 0);
    int next = segment.next >= 0 ? columns::load_words(launch, segment.next, lane) : 0;
    while (true) {
      const int slabs = segment.slabs;
      const bool has_next = segment.next >= 0;
      int after_next = 0;
      // The latents of a row with several column groups are read again.
      const std::uint64_t hint =
          segment.columns > C::kColumns ? columns::evict_normal_hint() : evict_first_hint();
      for (int first = 0; first < slabs; first += kSlabsAhead) {
        int ahead = 0;
        if (first + kSlabsAhead < slabs) {
          ahead = load_entries(segment, first + kSlabsAhead);
        } else if (has_next) {
          const ColumnsSegment its = columns::segment_of(next);
          ahead = load_entries(its, 0);
          after_next = its.next >= 0 ? columns::load_words(launch, its.next, lane) : 0;
        }
        for (int i = first; i < min(slabs, first + kSlabsAhead); ++i, ++slab) {
          const int block = __shfl_sync(~0U, held, (i - first) * C::kTiles + lane % C::kTiles);
          const bool has_new_tokens =
              segment.first_token + (i + 1) * C::kTokens > segment.seq_len - segment.q_len;
          if (!has_waited && (slab >= C::kStages || has_new_tokens)) follow();
          copy(segment, i, block, hint);
        }
        held = ahead;
      }
      if (!has_next) break;
      segment = columns::segment_of(next);
      next = after_next;
    }
    if (!has_waited) follow();
  }
};

}  // namespace kvarena::kernels::latent
