#pragma once

/// @file
/// The warps of the Hopper kernel that load V of fp8, and where Q is not split K, and store them as
/// f16 operands. The tiles of an item come from the last to the first, K of each before its V.
/// Included by prefill_hopper.cuh.

#include "kernels/common/hopper_fp8.cuh"
#include "kernels/common/hopper_operands.cuh"
#include "kernels/prefill/hopper_tile.cuh"

namespace kvarena::kernels::prefill {

/// The state of a thread. Warp `warp` has 16-token tiles warp, warp + kWarps, ... of each tile. Its
/// loads for a stage are under way while it waits for the stage.
template <class Tile>
struct Converter {
  static constexpr int D = Tile::D;
  static constexpr int kBlocks = Tile::kBlocks;
  static constexpr int kStages = Tile::kStages;
  static constexpr int kWarps = Tile::kConverterWarps;
  using Order = PieceOrder<D>;
  static constexpr int kLoads = Order::kLoads;
  static constexpr int kMine = (kBlocks + kWarps - 1) / kWarps;  ///< 16-token tiles of a warp
  static constexpr int kBytes = kTileTokens * D;                 ///< of a 16-token tile

  const PrefillParams& p;
  const HopperLaunch& launch;
  HopperShared<Tile>& shared;
  const int warp;
  const Order order;
  int blocks[kMine] = {};                  ///< table entries of the warp's 16-token tiles
  std::uint32_t pieces[kMine][kLoads][4];  ///< what is loaded

  __device__ __forceinline__ Converter(const PrefillParams& p, const HopperLaunch& launch,
                                       HopperShared<Tile>& shared, int warp, int lane)
      : p(p), launch(launch), shared(shared), warp(warp), order(lane) {}

  /// Returns whether the warp has an m-th 16-token tile.
  __device__ __forceinline__ bool has(int m) const {
    return (m + 1) * kWarps <= kBlocks || warp + m * kWarps < kBlocks;
  }

  /// Starts the loads of the warp's part of tile `n` of K or V. Tokens that no row sees become
  /// zeros: in V because a weight of 0 times NaN is NaN, in K because there may be no block.
  __device__ __forceinline__ void load(const PlaneView& plane, const Item& item, int n) {
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
      const int tile = n * kBlocks + warp + m * kWarps;
      const int in_block =
          tile - launch.tiles_per_block.divide(tile) * launch.tiles_per_block.value;
      // Of values that are not negative, so that no sign takes a register.
      const auto bytes = static_cast<std::uint32_t>(in_block * kBytes + order.from);
      const char* const from = reinterpret_cast<const char*>(plane.base) +
                               static_cast<std::uint32_t>(item.head) * plane.head_stride +
                               static_cast<std::uint32_t>(blocks[m]) * plane.block_stride + bytes;
      // Of the tokens of this lane, the first and the one eight after it.
      const int token = tile * kTileTokens + order.token();
      const bool is_seen[2] = {
          token >= item.from && token < item.seq_len,
          token + kAtomTokens >= item.from && token + kAtomTokens < item.seq_len};
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        load_piece(pieces[m][i], from + i * Order::kFromStep,
                   has(m) && order.has(i) && (order.is_second(i) ? is_seen[1] : is_seen[0]));
      }
    }
  }

  /// Loads the table entries of the warp's part of tile `n`. Those before the first token that is
  /// seen are not read.
  __device__ __forceinline__ void load_blocks(const Item& item, int n) {
    const BlockId* table = p.attention.batch.tables.entries + item.table;
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
      const int tile = n * kBlocks + warp + m * kWarps;
      blocks[m] = has(m) && tile * kTileTokens + kTileTokens > item.from
                      ? table[launch.tiles_per_block.divide(tile)].value
                      : 0;
    }
  }

  /// Converts what is loaded.
  __device__ __forceinline__ void convert(char* stage) const {
    const std::uint32_t first = shared_address(stage) + warp * Tile::kTileBytes + order.to;
    const std::uint32_t second = first ^ kChunkBytes;
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
      if (!has(m)) continue;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        if (!order.has(i)) continue;
        const int at = m * kWarps * Tile::kTileBytes + i * Order::kToStep;
        store_piece_as_f16(first + at, second + at, pieces[m][i]);
      }
    }
  }

  /// Waits for a stage, converts what is loaded, and hands the stage to the consumers.
  __device__ __forceinline__ void fill(char* stage, Barrier* empty, int parity,
                                       Barrier* full) const {
    wait(empty, parity ^ 1);
    convert(stage);
    fence_async_proxy();
    arrive_as_warp(full, order.lane);
  }

  __device__ __forceinline__ void run() {
    int filled = 0;  // tiles of K, and of V
    for (int n = 0;; ++n) {
      const RingPlace<kItemSlots> slot(n);
      wait(&shared.item_full[slot.stage], slot.parity);
      const Item& item = shared.items[slot.stage];
      const int tiles = item.end_tile - item.first_tile;
      if (tiles == 0) return;
#pragma unroll
      for (int m = 0; m < kMine; ++m) {
        blocks[m] = has(m) ? item.blocks[warp + m * kWarps].value : 0;
      }
#pragma unroll 1
      for (int tile = item.end_tile - 1; tile >= item.first_tile; --tile) {
        const RingPlace<kStages> place(filled++);
        if constexpr (!Tile::kSplitsQuery) {
          if (warp == 0 && order.lane == 0) tell_copies(shared.tiles_copied, filled);
          load(p.attention.kv.key, item, tile);
          fill(shared.keys[place.stage], &shared.keys_empty[place.stage], place.parity,
               &shared.keys_full[place.stage]);
        }
        load(p.attention.kv.value, item, tile);
        if (tile > item.first_tile) load_blocks(item, tile - 1);
        fill(shared.values[place.stage], &shared.values_empty[place.stage], place.parity,
             &shared.values_full[place.stage]);
      }
      __syncwarp();
      asm volatile("" : "+r"(n));  // the slot is found again: it takes no register in between
      if (kWarpArrivals > 1 || order.lane == 0) {
        arrive(&shared.item_empty[RingPlace<kItemSlots>(n).stage]);
      }
    }
  }
};

}  // namespace kvarena::kernels::prefill
