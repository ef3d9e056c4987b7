#pragma once

/// @file
/// How a warp makes operands of f16 in shared memory from 16-token tiles of fp8 K and V in the
/// pool. The raw bytes go from global memory to registers: with them in shared memory as well,
/// shared memory would be as busy as the tensor cores.

#include "kernels/common/hopper.cuh"

#include "kvarena/base/tile_order.hpp"

#include <cstdint>

namespace kvarena::kernels {

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

/// Converts four elements to two words.
__device__ __forceinline__ void convert_word(std::uint32_t word, std::uint32_t& low,
                                             std::uint32_t& high) {
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\n"
      "cvt.rn.f16x2.e4m3x2 %1, b;\n}"
      : "=r"(low), "=r"(high)
      : "r"(word));
}

/// Stores 16 bytes in shared memory.
__device__ __forceinline__ void store_shared(std::uint32_t to, const std::uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

/// Converts a piece: 16 elements, whose first eight are stored at `first` and the others at
/// `second`.
__device__ __forceinline__ void store_piece_as_f16(std::uint32_t first, std::uint32_t second,
                                                   const std::uint32_t (&piece)[4]) {
  std::uint32_t words[4];
  convert_word(piece[0], words[0], words[1]);
  convert_word(piece[1], words[2], words[3]);
  store_shared(first, words);
  convert_word(piece[2], words[0], words[1]);
  convert_word(piece[3], words[2], words[3]);
  store_shared(second, words);
}

}  // namespace kvarena::kernels
