#pragma once

/// @file
/// The warp of the Hopper kernel that copies K and V into shared memory, one bulk copy for each
/// 16-token tile. The tiles of an item come from the last to the first, K of each before V of the
/// one before it. V of fp8, and with it K where Q is not split, is loaded by hopper_convert.cuh.
/// Included by prefill_hopper.cuh.

#include "kernels/prefill/hopper_tile.cuh"

namespace kvarena::kernels::prefill {

/// The copying warp. Lane l has 16-token tile l of the tile that is copied.
template <class Tile>
struct Copier {
  static constexpr int kBlocks = Tile::kBlocks;
  static constexpr int kStages = Tile::kStages;
  static constexpr int kBytes = Tile::kKeyTileBytes;  ///< of a 16-token tile of K or V in the pool

  const PrefillParams& p;
  const HopperLaunch& launch;
  HopperShared<Tile>& shared;
  int lane;
  int keys = 0;         ///< tiles of K copied
  int values = 0;       ///< tiles of V copied
  int head = 0;         ///< KV head of the current item
  int first_token = 0;  ///< of the current item: tokens first_token .. seq_len - 1 are seen
  int seq_len = 0;

  /// Returns the start of a 16-token tile. `block` is its table entry.
  __device__ __forceinline__ const char* tile_at(const PlaneView& plane, int block,
                                                 int tile) const {
    const int in_block = tile - launch.tiles_per_block.divide(tile) * launch.tiles_per_block.value;
    int its_head = head;
    asm volatile("" : "+r"(its_head));  // no product of it takes registers from tile to tile
    return reinterpret_cast<const char*>(plane.base) + its_head * plane.head_stride +
           block * plane.block_stride + in_block * kBytes;
  }

  /// Copies K of tile `n`. Tiles that no row sees are not copied: their logits are masked.
  __device__ __forceinline__ void copy_keys(int n, int block) {
    const RingPlace<Tile::kKeyStages> place(keys);
    Barrier* const full = &shared.keys_full[place.stage];
    char* const stage = shared.keys[place.stage];
    wait(&shared.keys_empty[place.stage], place.parity ^ 1);
    ++keys;
    if (lane == 0) tell_copies(shared.tiles_copied, keys);
    const int tile = n * kBlocks + lane;
    const int token = tile * kTileTokens;
    const bool is_seen = lane < kBlocks && token < seq_len && token + kTileTokens > first_token;
    const int count = __popc(__ballot_sync(~0U, is_seen));
    if (lane == 0) arrive_and_expect(full, count * kBytes);
    __syncwarp();
    if (is_seen) {
      copy_bulk(shared_address(stage) + lane * kBytes, tile_at(p.attention.kv.key, block, tile),
                kBytes, full);
    }
  }

  /// Writes the 16-token tiles that are not in `whole`: tokens that no row sees become zeros,
  /// because a weight of 0 times NaN is NaN.
  __device__ __forceinline__ void write_edges(char* stage, int n, int block, unsigned whole) {
    constexpr int kGroupPieces = kBytes / 2 / kChunkBytes;  // of eight tokens
    constexpr int kAtomPieces = kAtomTokens * Tile::kPiece / kChunkBytes;
    constexpr int kTokenPieces = Tile::kPiece / kChunkBytes;
#pragma unroll 1
    for (int j = 0; j < kBlocks; ++j) {
      if ((whole >> j & 1) != 0) continue;
      const int tile = n * kBlocks + j;
      const char* from = tile_at(p.attention.kv.value, __shfl_sync(~0U, block, j), tile);
#pragma unroll 1
      for (int i = lane; i < kBytes / kChunkBytes; i += 32) {
        const int token =
            tile * kTileTokens + i / kGroupPieces * kAtomTokens + i % kAtomPieces / kTokenPieces;
        uint4 piece = make_uint4(0, 0, 0, 0);
        if (token < seq_len && token >= first_token) {
          piece = *reinterpret_cast<const uint4*>(from + i * kChunkBytes);
        }
        *reinterpret_cast<uint4*>(stage + j * kBytes + i * kChunkBytes) = piece;
      }
    }
    fence_async_proxy();
    __syncwarp();
  }

  /// Copies V of tile `n`.
  __device__ __forceinline__ void copy_values(int n, int block) {
    const RingPlace<kStages> place(values);
    Barrier* const full = &shared.values_full[place.stage];
    char* const stage = shared.values[place.stage];
    wait(&shared.values_empty[place.stage], place.parity ^ 1);
    ++values;
    const int tile = n * kBlocks + lane;
    const int token = tile * kTileTokens;
    const bool is_whole = lane < kBlocks && token + kTileTokens <= seq_len && token >= first_token;
    const unsigned whole = __ballot_sync(~0U, is_whole);
    if (whole != (1U << kBlocks) - 1) {
      write_edges(stage, n, block, whole);
    }
    if (lane == 0) arrive_and_expect(full, __popc(whole) * kBytes);
    __syncwarp();
    if (is_whole) {
      copy_bulk(shared_address(stage) + lane * kBytes, tile_at(p.attention.kv.value, block, tile),
                kBytes, full);
    }
  }

  __device__ void run() {
    const AttentionParams& a = p.attention;
    for (int n = 0;; ++n) {
      const RingPlace<kItemSlots> place(n);
      wait(&shared.item_full[place.stage], place.parity);
      const Item& item = shared.items[place.stage];
      const int end_tile = item.end_tile;
      const int tiles = end_tile - item.first_tile;
      if (tiles == 0) return;
      const BlockId* table = a.batch.tables.entries + item.table;
      head = item.head;
      first_token = item.from;
      seq_len = item.seq_len;
      int next = lane < kBlocks ? item.blocks[lane].value : 0;
      arrive_as_warp(&shared.item_empty[place.stage], lane);
      int block_of_values = 0;
      for (int i = 0; i <= tiles; ++i) {
        const int block_of_keys = next;
        if (i < tiles) {
          const int tile = end_tile - 1 - i;
          if (i + 1 < tiles) {
            const int below = (tile - 1) * kBlocks + lane;
            next = lane < kBlocks && below * kTileTokens + kTileTokens > first_token
                       ? table[launch.tiles_per_block.divide(below)].value
                       : 0;
          }
          copy_keys(tile, block_of_keys);
        }
        if (i > 0 && !Tile::kSplitsQuery) copy_values(end_tile - i, block_of_values);
        block_of_values = block_of_keys;
      }
    }
  }
};

}  // namespace kvarena::kernels::prefill
