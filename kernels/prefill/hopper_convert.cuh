#pragma once

/// @file
/// The warps of the Hopper kernel that load K and V of fp8 and store them as f16 operands. The raw
/// bytes go from global memory to registers: with them in shared memory as well, shared memory
/// would be as busy as the tensor cores. The tiles of an item come from the last to the first, K of
/// each before its V. Included by prefill_hopper.cuh.

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
  static constexpr int kMine = (kBlocks + kWarps - 1) / kWarps;  ///< 16-token tiles of a warp
  static constexpr int kAtomBytes = kAtomTokens * kPieceBytes;   ///< of eight tokens and 64 dims
  static constexpr int kBytes = kTileTokens * D;                 ///< of a 16-token tile
  static constexpr int kAtoms = kBytes / kAtomBytes;             ///< of a 16-token tile
  static_assert(D % kPieceBytes == 0);

  const PrefillParams& p;
  const HopperLaunch& launch;
  HopperShared<Tile>& shared;
  const int warp;
  const int lane;
  const int from_lane;                    ///< bytes of an atom to the 16 that this lane loads
  const int to_lane;                      ///< bytes of two of f16 to the first 16 that it stores
  int blocks[kMine] = {};                 ///< table entries of the warp's 16-token tiles
  std::uint32_t atoms[kMine][kAtoms][4];  ///< what is loaded

  __device__ __forceinline__ Converter(const PrefillParams& p, const HopperLaunch& launch,
                                       HopperShared<Tile>& shared, int warp, int lane)
      : p(p),
        launch(launch),
        shared(shared),
        warp(warp),
        lane(lane),
        from_lane(token_of(lane) * kPieceBytes + ((chunk_of(lane) ^ swizzle_of(lane)) << 4)),
        to_lane((chunk_of(lane) >> 1) * kAtomBytes + token_of(lane) * kPieceBytes +
                (((2 * chunk_of(lane) & 3) ^ swizzle_of(lane)) << 4)) {}

  /// Returns the token and the 16 elements that a lane has of an atom: stores of no quarter of the
  /// warp meet in a bank.
  static __device__ __forceinline__ int token_of(int lane) {
    return (lane >> 4 & 1) * 4 + (lane >> 1 & 3);
  }
  static __device__ __forceinline__ int chunk_of(int lane) {
    return (lane & 1) + 2 * ((lane >> 2 & 1) ^ (lane >> 3 & 1));
  }
  static __device__ __forceinline__ int swizzle_of(int lane) { return token_of(lane) >> 1 & 3; }

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
      const auto bytes = static_cast<std::uint32_t>(in_block * kBytes + from_lane);
      const char* const from = reinterpret_cast<const char*>(plane.base) +
                               static_cast<std::uint32_t>(item.head) * plane.head_stride +
                               static_cast<std::uint32_t>(blocks[m]) * plane.block_stride + bytes;
      // Of the tokens of this lane, the first and the one eight after it.
      const int token = tile * kTileTokens + from_lane / kPieceBytes;
      const bool is_seen[2] = {
          token >= item.from && token < item.seq_len,
          token + kAtomTokens >= item.from && token + kAtomTokens < item.seq_len};
#pragma unroll
      for (int i = 0; i < kAtoms; ++i) {
        load_piece(atoms[m][i], from + i * kAtomBytes, has(m) && is_seen[i / (D / kPieceBytes)]);
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

  /// Converts what is loaded. An atom becomes two of f16.
  __device__ __forceinline__ void convert(char* stage) const {
    const std::uint32_t first = shared_address(stage) + warp * Tile::kTileBytes + to_lane;
    const std::uint32_t second = first ^ kChunkBytes;
#pragma unroll
    for (int m = 0; m < kMine; ++m) {
      if (!has(m)) continue;
#pragma unroll
      for (int i = 0; i < kAtoms; ++i) {
        const int at = m * kWarps * Tile::kTileBytes + i * (2 * kAtomBytes);
        std::uint32_t words[4];
        convert_word(atoms[m][i][0], words[0], words[1]);
        convert_word(atoms[m][i][1], words[2], words[3]);
        store_shared(first + at, words);
        convert_word(atoms[m][i][2], words[0], words[1]);
        convert_word(atoms[m][i][3], words[2], words[3]);
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
    __syncwarp();
    if (lane == 0) arrive(full);
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
        if (warp == 0 && lane == 0) *static_cast<volatile int*>(&shared.tiles_copied) = filled;
        load(p.attention.kv.key, item, tile);
        fill(shared.keys[place.stage], &shared.keys_empty[place.stage], place.parity,
             &shared.keys_full[place.stage]);
        load(p.attention.kv.value, item, tile);
        if (tile > item.first_tile) load_blocks(item, tile - 1);
        fill(shared.values[place.stage], &shared.values_empty[place.stage], place.parity,
             &shared.values_full[place.stage]);
      }
      __syncwarp();
      if (lane == 0) arrive(&shared.item_empty[slot.stage]);
    }
  }
};

}  // namespace kvarena::kernels::prefill
