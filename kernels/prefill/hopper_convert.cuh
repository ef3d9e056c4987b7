#pragma once

/// @file
/// The warpgroup of the Hopper kernel that converts fp8 tiles to f16 operands. Included by
/// prefill_hopper.cuh.

#include "kernels/prefill/hopper_tile.cuh"

namespace kvarena::kernels::prefill {

/// The state of a thread.
template <class Tile>
struct Converter {
  static constexpr int D = Tile::D;
  static constexpr int kAtomBytes = kAtomTokens * kPieceBytes;  ///< of eight tokens and 64 dims
  static constexpr int kAtoms = Tile::kRawBytes / kAtomBytes;
  static constexpr int kAtomsOfTokens = D / kPieceBytes;  ///< of the same tokens
  static constexpr int kWarps = 4;
  static constexpr int kAtOnce = 4;  ///< atoms that a warp has in flight

  HopperShared<Tile>& shared;
  int warp;
  int lane;
  int keys = 0;    ///< tiles of K converted
  int values = 0;  ///< tiles of V converted

  /// Converts four elements to two words.
  static __device__ __forceinline__ void convert_word(std::uint32_t word, std::uint32_t& low,
                                                      std::uint32_t& high) {
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n}"
        : "=r"(low), "=r"(high)
        : "r"(word));
  }

  /// Converts a tile. An atom becomes two of f16. Lanes take tokens and chunks of 16 elements so
  /// that neither the loads nor the stores of a quarter of the warp meet in a bank.
  __device__ __forceinline__ void convert_atoms(const char* raw, char* operand) const {
    const int token = (lane >> 4 & 1) * 4 + (lane >> 1 & 3);
    const int chunk = (lane & 1) + 2 * ((lane >> 2 & 1) ^ (lane >> 3 & 1));
    const int swizzle = token >> 1 & 3;
    const char* from = raw + token * kPieceBytes + ((chunk ^ swizzle) << 4);
    char* to = operand + (chunk >> 1) * kAtomBytes + token * kPieceBytes;
    const int first = ((2 * chunk & 3) ^ swizzle) << 4;
    const int second = (((2 * chunk + 1) & 3) ^ swizzle) << 4;
    for (int base = warp; base < kAtoms; base += kWarps * kAtOnce) {
      uint4 bytes[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int atom = base + kWarps * i;
        if (atom < kAtoms) bytes[i] = *reinterpret_cast<const uint4*>(from + atom * kAtomBytes);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int atom = base + kWarps * i;
        if (atom >= kAtoms) continue;
        uint4 low;
        uint4 high;
        convert_word(bytes[i].x, low.x, low.y);
        convert_word(bytes[i].y, low.z, low.w);
        convert_word(bytes[i].z, high.x, high.y);
        convert_word(bytes[i].w, high.z, high.w);
        char* at = to + atom / kAtomsOfTokens * Tile::kGroupBytes +
                   atom % kAtomsOfTokens * (2 * kAtomBytes);
        *reinterpret_cast<uint4*>(at + first) = low;
        *reinterpret_cast<uint4*>(at + second) = high;
      }
    }
  }

  /// Converts the n-th tile of K or V, between its rings of stages.
  __device__ __forceinline__ void convert_tile(int n, const char* raws, char* operands,
                                               Barrier* raw_full, Barrier* raw_empty,
                                               Barrier* empty, Barrier* full) const {
    const RingPlace<Tile::kRawStages> from(n);
    const RingPlace<Tile::kStages> to(n);
    wait(&raw_full[from.stage], from.parity);
    wait(&empty[to.stage], to.parity ^ 1);
    convert_atoms(raws + from.stage * Tile::kRawBytes, operands + to.stage * Tile::kStageBytes);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      arrive(&full[to.stage]);
      arrive(&raw_empty[from.stage]);
    }
  }

  __device__ void run() {
    for (int n = 0;; ++n) {
      const RingPlace<kItemSlots> place(n);
      wait(&shared.item_full[place.stage], place.parity);
      const int tiles = shared.items[place.stage].end_tile - shared.items[place.stage].first_tile;
      if (tiles == 0) return;
      __syncwarp();
      if (lane == 0) arrive(&shared.item_empty[place.stage]);
      for (int i = 0; i <= tiles; ++i) {
        if (i < tiles) {
          convert_tile(keys++, shared.raw_keys[0], shared.keys[0], shared.raw_keys_full,
                       shared.raw_keys_empty, shared.keys_empty, shared.keys_full);
        }
        if (i > 0) {
          convert_tile(values++, shared.raw_values[0], shared.values[0], shared.raw_values_full,
                       shared.raw_values_empty, shared.values_empty, shared.values_full);
        }
      }
    }
  }
};

}  // namespace kvarena::kernels::prefill
