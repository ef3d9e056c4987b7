#pragma once

/// @file
/// The warps of the Hopper kernel that load K and V of fp8 and store them as f16 operands. The raw
/// bytes go from global memory to registers: with them in shared memory as well, shared memory
/// would be as busy as the tensor cores. The tiles of an item come from the last to the first, K of
/// each before its V. Included by prefill_hopper.cuh.

#include "kernels/common/hopper_operands.cuh"
#include "kernels/prefill/hopper_tile.cuh"

namespace kvarena::kernels::prefill {

/// The 16-byte pieces of a 16-token tile of fp8 as a warp has them, in loads of a piece a lane.
/// Where a token has whole pieces of 64 bytes, a load is an atom (tile_order.hpp), and becomes two
/// of f16. With pieces of 32 bytes it is two atoms, of which each becomes one. Plain rows have two
/// chunks of 16 bytes of each of the 16 tokens in a load; a chunk becomes an atom of pieces of 32
/// bytes. Stores of no quarter of a warp meet in a bank.
template <int D>
struct PieceOrder {
  static constexpr bool kIsRows = D % kSmallPiece != 0;
  static constexpr bool kIsSmall = !kIsRows && D % kPieceBytes != 0;
  static constexpr int kLoads = (kTileTokens * D + 511) / 512;       ///< of a 16-token tile
  static constexpr int kFromStep = kIsRows ? 2 * kChunkBytes : 512;  ///< bytes between loads
  static constexpr int kToStep = kIsRows ? 512 : 1024;  ///< bytes between loads, of f16
  static_assert(!kIsRows || D % kSmallPiece == kChunkBytes);

  int lane;
  int from;  ///< bytes to this lane's piece of load 0
  int to;    ///< bytes to the first 16 of the two that it becomes, of f16. The second is at ^ 16

  __device__ __forceinline__ explicit PieceOrder(int lane) : lane(lane) {
    const int half = lane >> 4;
    if constexpr (kIsRows) {
      from = token() * D + half * kChunkBytes;
      to = (token() >> 3) * kAtomTokens * D * 2 + half * 256 + (token() & 7) * kSmallPiece +
           ((token() >> 2 & 1) << 4);
    } else if constexpr (kIsSmall) {
      const int chunk = (lane & 1) ^ (token() >> 2);
      from = lane * kChunkBytes;
      to = half * 512 + token() * kPieceBytes + (((2 * chunk) ^ (token() >> 1)) << 4);
    } else {
      const int chunk = (lane & 1) + 2 * ((lane >> 2 & 1) ^ (lane >> 3 & 1));
      const int exchange = token() >> 1;
      from = token() * kPieceBytes + ((chunk ^ exchange) << 4);
      to = (chunk >> 1) * 512 + token() * kPieceBytes + (((2 * chunk & 3) ^ exchange) << 4);
    }
  }

  /// Returns this lane's token of load 0.
  __device__ __forceinline__ int token() const {
    if constexpr (kIsRows) return lane & 15;
    if constexpr (kIsSmall) return lane >> 1 & 7;
    return (lane >> 4) * 4 + (lane >> 1 & 3);
  }
  /// Returns whether this lane's token of load i is in the second eight.
  __device__ __forceinline__ bool is_second(int i) const {
    constexpr int kAtoms = kIsSmall ? D / kSmallPiece : D / kPieceBytes;  // of eight tokens
    if constexpr (kIsRows) return false;
    if constexpr (!kIsSmall) return i >= kAtoms;
    if (2 * i >= kAtoms) return true;
    return 2 * i + 1 >= kAtoms && lane >= 16;
  }
  /// Returns whether this lane has a piece in load i.
  __device__ __forceinline__ bool has(int i) const {
    return !kIsRows || 2 * i + 1 < D / kChunkBytes || lane < 16;
  }
};

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

  /// Converts four elements to two words.
  static __device__ __forceinline__ void convert_word(std::uint32_t word, std::uint32_t& low,
                                                      std::uint32_t& high) {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n}"
        : "=r"(low), "=r"(high)
        : "r"(word));
  }

  /// Stores 16 bytes in shared memory.
  static __device__ __forceinline__ void store_shared(std::uint32_t to,
                                                      const std::uint32_t (&words)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
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
        std::uint32_t words[4];
        convert_word(pieces[m][i][0], words[0], words[1]);
        convert_word(pieces[m][i][1], words[2], words[3]);
        store_shared(first + at, words);
        convert_word(pieces[m][i][2], words[0], words[1]);
        convert_word(pieces[m][i][3], words[2], words[3]);
        store_shared(second + at, words);
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
        if (warp == 0 && order.lane == 0) tell_copies(shared.tiles_copied, filled);
        load(p.attention.kv.key, item, tile);
        fill(shared.keys[place.stage], &shared.keys_empty[place.stage], place.parity,
             &shared.keys_full[place.stage]);
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
