#pragma once

/// @file
/// What the parts of the latent kernel share: the constants of an instance, its shared memory and
/// the numbers of its warps. A latent has 576 elements, and V is the leading 512 of them. The
/// products have the tokens (or dims) as their 64 rows and the query columns as their columns, so
/// 16 columns cost a fourth of 64.
///
/// Warpgroup 0 has the producer warp, which copies latents. Warpgroup 1 computes logits and
/// weights. Warpgroups 2 and 3 multiply the weights with half of the dims of V each. Where the pool
/// has other latents than bf16, the producer copies them to a ring of tiles, and warpgroup 4
/// converts them.
///
/// The fastest instance of 64 columns is another one: latent_halves.cuh.

#include "kernels/columns/columns_config.cuh"
#include "kernels/common/convert.cuh"
#include "kvarena/base/latent_fp8.hpp"

#include <type_traits>

namespace kvarena::kernels::latent {

using columns::kLog2e;
using columns::Launch;

/// Named barriers: of the warpgroup that computes logits.
inline constexpr int kLogitsBarrier = 4;
/// And of the two that have halves of V.
inline constexpr int kValuesBarrier = 5;
/// Of the warpgroup that converts.
inline constexpr int kConverterBarrier = 6;
/// And of the smaller team that converts (latent_teams.cuh).
inline constexpr int kSmallTeamBarrier = 7;
/// Warps of the two warpgroups of values.
inline constexpr int kValueWarps = 8;

/// The bytes of a latent in a pool of this type, and whether it has scales for the whole tensor.
template <class Pool>
inline constexpr int kPoolRow = kLatentDim* static_cast<int>(sizeof(Pool));
template <>
inline constexpr int kPoolRow<columns::LatentFp8> = kLatentFp8Bytes;

/// The constants of an instance. Pool is the type of the latents: bf16, or Fp8 in chunked order. q
/// and out are bf16. With kHalves_, which is for 64 columns, two warpgroups take slabs in turn
/// (latent_halves.cuh). Latents in the format latent_fp8 have PackedConfig (latent_packed.cuh) for
/// up to 32 columns.
template <class Pool_, int kColumns_, bool kHalves_ = false>
struct Config {
  using Pool = Pool_;
  using T = __nv_bfloat16;
  static constexpr bool kPacked = false;
  static constexpr int kColumns = kColumns_;  ///< query columns of a thread block
  static constexpr bool kHalves = kHalves_;
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
  static constexpr bool kConverts = !std::is_same_v<Pool, T>;
  static constexpr bool kScaled = std::is_same_v<Pool, Fp8>;  ///< by QuantScales
  static constexpr bool kTeams =
      kHalves && std::is_same_v<Pool, columns::LatentFp8>;  ///< two convert (latent_teams.cuh)
  static constexpr int kPoolRowBytes = kPoolRow<Pool>;
  static constexpr int kPoolTileBytes = kTileTokens * kPoolRowBytes;
  /// Where a tile that is converted in its place is copied to.
  static constexpr int kPoolTileAt = kTeams ? kTileBytes - kPoolTileBytes : 0;
  static constexpr int kConverters = kTeams ? 224 : 128;     ///< threads that convert
  static constexpr int kPoolTiles = kColumns == 16 ? 5 : 3;  ///< of the ring
  static constexpr int kRingBytes = kConverts ? kPoolTiles * kPoolTileBytes : 16;
  static constexpr int kThreads = (kHalves ? 384 : 512) + (kConverts ? 128 : 0);
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
  // Their sum over the warpgroups is what a launch of kThreads gets.
  static constexpr int kProducerRegisters = kTeams ? 56 : kConverts ? 24 : kHalves ? 40 : 32;
  static constexpr int kLogitsRegisters = kConverts ? 96 : 120;
  static constexpr int kValueRegisters = kConverts ? 120 : 176;
  static constexpr int kHalfRegisters = kConverts ? 208 : 232;
  static constexpr int kConverterRegisters = kTeams ? 40 : kHalves ? 64 : 120;
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
  char ring[C::kRingBytes];  ///< tiles as they lie in the pool
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
  Barrier ring_full[C::kPoolTiles];
  Barrier ring_empty[C::kPoolTiles];
};

/// The shared memory of an instance whose warpgroups take slabs in turn. A slab's weights lie in
/// it, and tiles are converted in their place: there is no room for a ring.
template <class C>
requires(C::kHalves) struct alignas(1024) Shared<C> {
  char latents[C::kStages][C::kSlabBytes];
  char query[C::kColumns * C::kRowBytes];
  float keep[C::kStages][C::kColumns];
  float maximum[C::kStages][C::kColumns];
  float sum[2][C::kColumns];
  std::uint64_t path[C::kColumns];  ///< new tokens that a column sees
  int flags[C::kStages];
  Barrier latents_full[C::kStages];
  Barrier tile_empty[C::kStages][C::kTiles];
  Barrier weights_full[C::kStages];
  Barrier pool_full[C::kStages][C::kTiles];  ///< a tile as it lies in the pool
  Barrier meeting;                           ///< of both warpgroups, in a build for racecheck
};

/// The shared memory of an instance that reads packed latents: they are no operands.
template <class C>
requires(C::kPacked) struct alignas(1024) Shared<C> {
  char query[C::kColumns * C::kRowBytes];
  char weights[C::kWeightBuffers][C::kWeightBytes];
  char latents[C::kStages][C::kSlabBytes];
  __half ratios[C::kWeightBuffers][C::kRuns][C::kTokens];  ///< of scales and their powers of two
  float keep[C::kWeightBuffers][C::kColumns];
  float maximum[C::kColumns];  ///< of a segment, with `sum`
  float sum[C::kColumns];
  float factor[C::kColumns];  ///< of products with a column of `query`, to log2
  float raised[C::kColumns];  ///< the maxima that one of the warpgroups of logits has raised
  float warp_values[4 * C::kLogitsGroups][C::kColumns];
  std::uint64_t path[C::kColumns];  ///< new tokens that a column sees
  int flags[C::kWeightBuffers];
  int grew[2];  ///< a warpgroup has raised the maxima in its last slab
  Barrier latents_full[C::kStages];
  Barrier tile_empty[C::kStages][C::kTiles];
  Barrier weights_full[C::kWeightBuffers];
  Barrier weights_empty[C::kWeightBuffers];
  Barrier maxima_full[2];  ///< a warpgroup knows the maxima with its last slab
  Barrier meeting;         ///< of both warpgroups of logits, in a build for racecheck
  Barrier result_full;
  Barrier result_empty;
};

/// The place of the next tile in the ring.
template <class C>
struct RingPlace {
  int at = 0;
  int round = 0;  ///< parity of the times that the ring was filled

  __device__ __forceinline__ void advance() {
    if (++at < C::kPoolTiles) return;
    at = 0;
    round ^= 1;
  }
};

/// Returns a scale of QuantScales, or 1 where there is none. The kernel in front may write it.
template <class C>
__device__ __forceinline__ float scale_of(const float* scale) {
  if constexpr (!C::kScaled) return 1.0F;
  return scale == nullptr ? 1.0F : *static_cast<const volatile float*>(scale);
}

/// Returns the factor of products of q and latents, to log2.
template <class C>
__device__ __forceinline__ float logit_scale(const Launch& launch) {
  return launch.constants.logit_scale * scale_of<C>(launch.params.scales.key);
}

/// Returns the factor of maxima, to log2.
template <class C>
__device__ __forceinline__ float maximum_scale(const Launch& launch) {
  if constexpr (C::kPacked) return 1.0F;
  return logit_scale<C>(launch);
}

/// Waits for kThreads threads of some warpgroups, who count their `meetings`. racecheck loses count
/// of a named barrier when some of its threads come to other named barriers more often than the
/// rest in between, so a build for it has a barrier in shared memory.
template <int kBarrier, int kThreads>
__device__ __forceinline__ void meet(Barrier* meeting, int& meetings) {
  if constexpr (kWarpArrivals > 1) {
    arrive(meeting);
    wait(meeting, meetings++ & 1);
  } else {
    sync_named<kBarrier>(kThreads);
  }
}

/// Keeps the compiler from loading what comes later before this place: registers are few.
__device__ __forceinline__ void load_later() { asm volatile("" ::: "memory"); }

/// Returns the first column of a segment in its row.
template <class C>
__device__ __forceinline__ int first_column(const ColumnsSegment& segment) {
  return segment.column_group * C::kColumns;
}

}  // namespace kvarena::kernels::latent
