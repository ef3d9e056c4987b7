#pragma once

/// @file
/// The shape of the Hopper kernel of prefill.h, its shared memory, and its items.
/// An item is a tile of packed rows of one KV head; packed row token * group + i is query
/// head i of the KV head's group for a query token. A thread block has a producer warpgroup, which
/// copies K and V and gives out items, and two consumer warpgroups, which have half of the tile's
/// rows each. V of fp8 becomes an operand of f16 on the way: warps of a fourth warpgroup, and where
/// they do not suffice of the producer warpgroup, load and convert it. K of fp8 is multiplied as it
/// lies in the pool, or becomes f16 like V (kSplitsQuery).

#include "kernels/common/hopper.cuh"
#include "kernels/prefill/hopper_launch.h"
#include "kernels/prefill/prefill_plan.h"

#include "kvarena/base/tile_order.hpp"

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

namespace kvarena::kernels::prefill {

inline constexpr int kItemSlots = 4;   ///< items that are given out but not finished
inline constexpr int kTilesAhead = 4;  ///< an item is taken when this many tiles are left to copy
inline constexpr int kMostConverters = 7;  ///< warps that may convert K and V

/// The kernel for q and out of type `T`, K and V of type `S` and `D` dims, in tiles of `N` tokens.
template <class T_, class S_, int D_, int N_, bool kHasWindow_, bool kHasCap_, bool kSplitsQuery_>
struct HopperTile {
  using T = T_;
  using S = S_;
  static constexpr int D = D_;
  static constexpr int N = N_;
  static constexpr bool kHasWindow = kHasWindow_;
  static constexpr bool kHasCap = kHasCap_;
  static constexpr bool kIsFp8 = std::is_same_v<S, __nv_fp8_e4m3>;
  /// K and V are plain [block_size, D]: their tokens have no chunked order.
  static constexpr bool kReadsRows = !has_chunked_order(kIsFp8 ? DType::fp8_e4m3 : DType::bf16, D);
  using Math = std::conditional_t<kIsFp8, __half, T>;  ///< of the operands of products

  static constexpr int kRows = kPlanRows;  ///< packed rows of an item
  static constexpr int kGroupRows = kRows / 2;
  static constexpr int kBlocks = N / kTileTokens;  ///< 16-token tiles
  static constexpr int kStages = D == 192 && !kIsFp8 ? 3 : 2;
  /// Q of 256 dims does not fit into registers beside the outputs. Consumers of fp8 have fewer
  /// registers.
  static constexpr bool kHasSharedQuery = D == 256 || (D == 192 && kIsFp8);

  /// K of fp8 is multiplied as it lies in the pool, and Q is split into numbers of fp8
  /// (hopper_split_query.cuh). It is faster for long rows, and exact enough for bf16. Otherwise K
  /// becomes f16 like V.
  static constexpr bool kSplitsQuery = kSplitsQuery_;
  static_assert(!kSplitsQuery ||
                (kIsFp8 && std::is_same_v<T, __nv_bfloat16> && !kReadsRows && !kHasSharedQuery));
  /// The consumer warpgroups take turns at the tensor cores, where it was measured to be faster.
  static constexpr bool kTakesTurns =
      kIsFp8 ? D == 64 || (kSplitsQuery && D == 128 && !kHasCap) : D != 256;

  static constexpr int kTileBytes = kTileTokens * D * 2;  ///< of a 16-token operand
  static constexpr int kStageBytes = N * D * 2;
  static constexpr int kKeyBytes = D * (kSplitsQuery ? 1 : 2);  ///< of a token's K as an operand
  static constexpr int kKeyTileBytes = kTileTokens * kKeyBytes;
  static constexpr int kKeyStageBytes = N * kKeyBytes;
  static constexpr int kKeyGroupBytes = 8 * kKeyBytes;
  static constexpr int kKeyStages = kSplitsQuery ? 3 : kStages;
  /// Bytes of a token in an atom of an operand.
  static constexpr int kPiece = D * 2 % kPieceBytes ? kSmallPiece : kPieceBytes;
  static constexpr Swizzle kSwizzle = kPiece == kPieceBytes ? Swizzle::bytes_64 : Swizzle::bytes_32;
  static constexpr int kGroupBytes = 8 * D * 2;  ///< of eight tokens or rows of an operand
  static constexpr int kKeyPiece = kKeyBytes % kPieceBytes ? kSmallPiece : kPieceBytes;
  static constexpr Swizzle kKeySwizzle =
      kKeyPiece == kPieceBytes ? Swizzle::bytes_64 : Swizzle::bytes_32;

  /// Warps that convert: at most a 16-token tile each, or V alone.
  static constexpr int kConverterWarps = !kIsFp8                     ? 0
                                         : kSplitsQuery              ? 4
                                         : kBlocks < kMostConverters ? kBlocks
                                                                     : kMostConverters;
  /// The fourth warpgroup has all of them, and more registers than the first.
  static constexpr bool kHasOwnConverters = kConverterWarps == 4;
  /// A warp asks for Q ahead of its use. With fp8 it is one that does not convert.
  static constexpr bool kPrefetchesQuery = kHasSharedQuery;
  static_assert(!kPrefetchesQuery || kConverterWarps < kMostConverters);
  static constexpr int kThreads = kIsFp8 ? 512 : 384;
  static constexpr int kProducerRegisters = !kIsFp8 || kSplitsQuery ? 40
                                            : D == 64               ? 64
                                            : D == 192              ? 56
                                                                    : 48;
  static constexpr int kConverterRegisters = kSplitsQuery        ? 56
                                             : kHasOwnConverters ? 64
                                                                 : kProducerRegisters;
  static constexpr int kConsumerRegisters =
      !kIsFp8 ? 232 : (512 - kProducerRegisters - kConverterRegisters) / 2 / 8 * 8;
  /// The products of a tile's keys run beside those of the values of the tile before. Their logits
  /// and weights then need registers at the same time.
  static constexpr bool kOverlapsTiles = !kIsFp8 || D < 192 || (D == 192 && !kHasCap);
  /// Products with V are cut along the dims: no instruction may need more registers than a thread
  /// has at the start of the kernel.
  static constexpr int kValueDims = D == 256 && kIsFp8 ? 128 : D;
};

/// An item. Its tiles of N tokens are first_tile .. end_tile - 1; without tiles it is the end.
struct Item {
  std::int64_t table;      ///< the row's first entry in the block tables
  std::int32_t rows_tile;  ///< of kRows packed rows
  std::int32_t head;       ///< KV head
  std::int32_t first_tile;
  std::int32_t end_tile;
  std::int32_t q_begin;  ///< first query token of the row
  std::int32_t q_len;    ///< query tokens of the row
  std::int32_t seq_len;  ///< tokens of the row
  std::int32_t from;     ///< first token that some packed row sees
  BlockId blocks[12];    ///< table entries of the last tile's 16-token tiles
};

/// What a consumer warp keeps of its item until the outputs are written. In shared memory, because
/// the main loop needs the registers.
struct KeptItem {
  std::int64_t table;
  std::int32_t rows_tile;
  std::int32_t head;
  std::int32_t q_begin;
  std::int32_t q_len;
  std::int32_t seq_len;
  std::int32_t from;  ///< tokens from .. end - 1 were multiplied
  std::int32_t end;
};

/// Shared memory. A `full` barrier says that a stage may be read, an `empty` one that it may be
/// written.
template <class Tile>
struct alignas(1024) HopperShared {
  char keys[Tile::kKeyStages][Tile::kKeyStageBytes];
  char values[Tile::kStages][Tile::kStageBytes];
  char query[Tile::kHasSharedQuery ? Tile::kRows * Tile::D * 2 : 16];
  Barrier keys_full[Tile::kKeyStages];
  Barrier keys_empty[Tile::kKeyStages];
  Barrier values_full[Tile::kStages];
  Barrier values_empty[Tile::kStages];
  Barrier item_full[kItemSlots];
  Barrier item_empty[kItemSlots];
  int tiles_copied;  ///< tiles of K for which copies or loads were begun
  Item items[kItemSlots];
  KeptItem kept[8];  ///< one for each consumer warp
};

/// Returns the tokens that packed row `row` of an item sees: 0 .. result - 1, none when it is not
/// positive.
template <class AnyItem>
__device__ __forceinline__ int visible_end(const AnyItem& item, const HopperLaunch& launch,
                                           int row) {
  return min(item.seq_len - item.q_len + launch.group.divide(row) + 1, item.seq_len);
}

/// The place of a packed row in q, out and lse.
struct RowPlace {
  std::int32_t token;  ///< query token
  std::int32_t head;   ///< query head

  /// Returns the bytes from the begin of q or out to dim 0, of heads with `head_bytes` bytes.
  __device__ __forceinline__ std::int64_t bytes(std::int64_t token_stride, int head_bytes) const {
    return token * token_stride + head * head_bytes;
  }
  /// Returns the index in lse.
  __device__ __forceinline__ std::int64_t index(int num_q_heads) const {
    return std::int64_t{token} * num_q_heads + head;
  }
};
template <class AnyItem>
__device__ __forceinline__ RowPlace place_of(const AnyItem& item, const HopperLaunch& launch,
                                             int row) {
  const int token = launch.group.divide(row);
  return {item.q_begin + token, item.head * launch.group.value + row - token * launch.group.value};
}

/// Returns the stage and the parity of its phase for the n-th use of a ring.
template <int kStages>
struct RingPlace {
  int stage;
  int parity;
  __device__ __forceinline__ explicit RingPlace(int n)
      : stage(n % kStages), parity((n / kStages) & 1) {}
};

/// Tells for how many tiles of K copies were begun: a hint, which is read without order. racecheck
/// knows no such thing, so a build for it has atomics.
__device__ __forceinline__ void tell_copies(int& copied, int tiles) {
  if constexpr (kWarpArrivals > 1) {
    atomicExch(&copied, tiles);
  } else {
    *static_cast<volatile int*>(&copied) = tiles;
  }
}

}  // namespace kvarena::kernels::prefill
