#pragma once

/// @file
/// What the parts of the latent kernel share: the constants of an instance, its shared memory and
/// the numbers of its warps. A latent has 576 elements, and V is the leading 512 of them. The
/// products have the tokens (or dims) as their 64 rows and the query columns as their columns, so
/// 16 columns cost a fourth of 64.
///
/// Warpgroup 0 has the producer warp, which copies latents. Warpgroup 1 computes logits and
/// weights. Warpgroups 2 and 3 multiply the weights with half of the dims of V each.

#include "kernels/columns/columns_config.cuh"

namespace kvarena::kernels::latent {

using columns::kLog2e;
using columns::Launch;

/// Named barriers: of the warpgroup of logits.
inline constexpr int kLogitsBarrier = 4;
/// Warps of the two warpgroups of values.
inline constexpr int kValueWarps = 8;

/// The constants of an instance. T is the type of q, latents and out.
template <class T_, int kColumns_>
struct Config {
  using T = T_;
  static constexpr int kColumns = kColumns_;    ///< query columns of a thread block
  static constexpr int kDim = kLatentValueDim;  ///< of V and of outputs
  static constexpr int kKeyDim = kLatentDim;    ///< of a latent
  static constexpr int kTokens = 64;            ///< of a slab
  static constexpr int kTiles = kTokens / kTileTokens;
  static constexpr int kStages = 2;
  static constexpr int kRowBytes = kKeyDim * 2;
  static constexpr int kTileBytes = kTileTokens * kRowBytes;
  static constexpr int kSlabBytes = kTokens * kRowBytes;
  static constexpr int kGroupBytes = kAtomTokens * kRowBytes;  ///< of eight tokens
  static constexpr int kAtomBytes = kAtomTokens * kPieceBytes;
  static constexpr int kThreads = 512;
  // The weights of a slab: an operand [tokens, columns] in the order of a pool with such rows.
  static constexpr int kWeightRow = kColumns * 2;
  static constexpr int kWeightPiece = kWeightRow % kPieceBytes == 0 ? kPieceBytes : kSmallPiece;
  static constexpr Swizzle kWeightSwizzle =
      kWeightPiece == kPieceBytes ? Swizzle::bytes_64 : Swizzle::bytes_32;
  static constexpr int kWeightGroup = kAtomTokens * kWeightRow;
  static constexpr int kWeightAtom = kAtomTokens * kWeightPiece;
  static constexpr int kWeightBytes = kTokens * kWeightRow;
  static constexpr int kWeightBuffers = kColumns == 64 ? 1 : 2;
  static constexpr int kSums = kColumns / 4;  ///< columns that a thread has a part of
  static constexpr int kProducerRegisters = 32;
  static constexpr int kLogitsRegisters = 120;
  static constexpr int kValueRegisters = 176;
  // What columns_combine.cuh reads.
  static constexpr bool kCap = false;
  static constexpr bool kHasTiles = false;
};

/// What a slab's weights need besides themselves.
enum Flags : int {
  kRescale = 1,  ///< `keep` has factors for the outputs so far
  kApart = 2,    ///< unseen tokens are not finite: weights of 0 must not be multiplied
};

/// The shared memory of a thread block.
template <class C>
struct alignas(1024) Shared {
  char latents[C::kStages][C::kSlabBytes];
  char query[C::kColumns * C::kRowBytes];
  char weights[C::kWeightBuffers][C::kWeightBytes];
  float keep[C::kWeightBuffers][C::kColumns];
  float maximum[C::kColumns];  ///< of a segment, with `sum`
  float sum[C::kColumns];
  float warp_values[4][C::kColumns];
  std::uint64_t path[C::kColumns];  ///< new tokens that a column sees
  int flags[C::kWeightBuffers];
  Barrier latents_full[C::kStages];
  Barrier tile_empty[C::kStages][C::kTiles];
  Barrier weights_full[C::kWeightBuffers];
  Barrier weights_empty[C::kWeightBuffers];
  Barrier result_full;
  Barrier result_empty;
};

/// Keeps the compiler from loading what comes later before this place: registers are few.
__device__ __forceinline__ void load_later() { asm volatile("" ::: "memory"); }

/// Returns the first column of a segment in its row.
template <class C>
__device__ __forceinline__ int first_column(const ColumnsSegment& segment) {
  return segment.column_group * C::kColumns;
}

}  // namespace kvarena::kernels::latent
