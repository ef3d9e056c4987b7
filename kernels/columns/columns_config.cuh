#pragma once

/// @file
/// What the parts of the columns kernel share: the constants of an instance, its shared memory, and
/// the place of a query column. Thread 128 * (1 + i) is the first of consumer warpgroup `i`; the
/// first warpgroup has the producer warp. Lane `l` of a consumer warp is (g, t) = (l / 4, l % 4),
/// as in the PTX description of the products: it holds columns g and g + 8 of its warp's 16.

#include "kernels/columns/columns.h"
#include "kernels/columns/columns_workspace.h"
#include "kernels/common/convert.cuh"
#include "kernels/common/hopper.cuh"
#include "kernels/common/wgmma.cuh"
#include "kvarena/base/tile_order.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace kvarena::kernels::columns {

/// Named barriers.
inline constexpr int kPartBarrier = 1;   ///< of all consumers: a part is written, or combined
inline constexpr int kSetUpBarrier = 2;  ///< of C::kSetUpThreads: the barriers are set up
inline constexpr int kQueryBarrier = 3;  ///< and the next: of a warpgroup that stores its queries
inline constexpr float kLog2e = 1.4426950408889634F;
inline constexpr float kLn2 = 0.6931471805599453F;

/// The constants of a variant. Pool is the type of K and V, which q and out have too unless it is
/// Fp8; kCap_ says whether logits are capped. Windows and trees are in every variant, because they
/// cost something only in slabs that need masks.
template <class Pool, int D, ColumnsKind kKind, bool kCap_>
struct Config {
  /// K and V of fp8 become operands of f16; q and out are bf16 or f16, as a launch says.
  static constexpr bool kIsFp8 = std::is_same_v<Pool, Fp8>;
  using T = std::conditional_t<kIsFp8, __half, Pool>;  ///< of operands
  static constexpr ColumnsShape kShape = columns_shape(D, kKind);
  static constexpr int kKeyDim = D;                                          ///< of q and K
  static constexpr int kDim = has_short_values(kKind) ? kShortValueDim : D;  ///< of V and out
  static constexpr int kColumns = kShape.columns;     ///< query columns of a thread block
  static constexpr int kTokens = kShape.slab_tokens;  ///< tokens of a slab
  static constexpr int kStages = kShape.stages;
  static constexpr int kPerSm = kShape.per_sm;
  static constexpr int kWarpgroups = kColumns / 64;  ///< of consumers
  static constexpr int kConsumers = kWarpgroups * 128;
  static constexpr int kThreads = kConsumers + 128;
  static constexpr int kTiles = kTokens / kTileTokens;  ///< of a slab
  static constexpr int kKeyTileBytes = kTileTokens * kKeyDim * 2;
  static constexpr int kKeySlabBytes = kTokens * kKeyDim * 2;
  static constexpr int kKeyGroupBytes = kAtomTokens * kKeyDim * 2;  ///< of eight tokens
  static constexpr int kTileBytes = kTileTokens * kDim * 2;         ///< of V, with the next two
  static constexpr int kSlabBytes = kTokens * kDim * 2;
  static constexpr int kGroupBytes = kAtomTokens * kDim * 2;
  static constexpr int kPiece = D * 2 % kPieceBytes == 0 ? kPieceBytes : kSmallPiece;
  static constexpr int kAtomBytes = kAtomTokens * kPiece;
  static constexpr Swizzle kSwizzle = kPiece == kPieceBytes ? Swizzle::bytes_64 : Swizzle::bytes_32;
  static constexpr bool kCap = kCap_;
  /// Whether it serves shared prefixes.
  static constexpr bool kHasTiles = serves_prefixes(D, kKind);
  /// Threads that wait until the barriers are set up: consumers, and producer or converters.
  static constexpr int kSetUpThreads = kConsumers + (kIsFp8 ? 128 : 32);
  /// Arrivals that make K, and V, of a stage full.
  static constexpr int kKeyArrivals = kIsFp8 ? 4 * kWarpArrivals : 1;
  static constexpr int kValueArrivals = kIsFp8 ? 4 * kWarpArrivals : 32;
  /// The queries of the next segment are loaded a segment ahead, where registers hold both.
  static constexpr bool kQueryAhead = kColumns == 128 && D <= 128 && !kIsFp8;
  /// With head_dim 256, registers hold the output and not the queries. Consumers of fp8 have fewer.
  static constexpr bool kSharedQuery = D > 192 || (kIsFp8 && D == 192);
  static constexpr int kQueryBytes = kSharedQuery ? kColumns * D * 2 : 16;
  /// Products with V for all dims: ptxas wants the accumulators of one to fit the registers of a
  /// thread at the launch.
  static constexpr int kValueRuns = D > 192 && kPerSm == 2 ? 2 : 1;
  /// Of a thread of the producer's warpgroup, or of the converters'.
  static constexpr int kProducerRegisters = !kIsFp8 ? 40 : kWarpgroups == 1 ? 64 : 88;
  static constexpr int kConsumerRegisters = kIsFp8             ? kWarpgroups == 1 ? 192 : 208
                                            : kWarpgroups == 1 ? 216
                                                               : 232;
  /// Of each thread when the kernel begins. With more than these, warpgroups would wait for ever.
  static constexpr int kLaunchRegisters = 65536 / (kThreads * kPerSm) / 8 * 8;
  static_assert(kProducerRegisters + kWarpgroups * kConsumerRegisters <=
                kLaunchRegisters * (kWarpgroups + 1));
  /// Partial results have their maxima in base 2; otherwise they are multiplied by
  /// Constants::logit_scale.
  static constexpr bool kHasScaledMaxima = kCap_ || kIsFp8;
};

/// Waits until the barriers are set up. Consumers and producer wait in different branches, which
/// bar.sync does not allow: it is the aligned form of barrier.sync.
template <class C>
__device__ __forceinline__ void wait_for_set_up() {
  asm volatile("barrier.sync %0, %1;" ::"n"(kSetUpBarrier), "n"(C::kSetUpThreads) : "memory");
}

/// The shared memory of a thread block.
template <class C>
struct alignas(1024) Shared {
  char key[C::kStages][C::kKeySlabBytes];
  char value[C::kStages][C::kSlabBytes];
  char query[C::kQueryBytes];
  Barrier key_full[C::kStages];
  Barrier key_empty[C::kStages];
  Barrier value_full[C::kStages];
  Barrier value_empty[C::kStages];
  int is_last;  ///< this thread block's part of the item arrived last
};

/// The type of a pool in the format latent_fp8.
struct LatentFp8 {};

/// What a launch computes from its parameters.
struct Constants {
  std::int32_t group;             ///< query heads of a KV head
  std::uint32_t group_inverse;    ///< ceil(2^32 / group)
  std::uint32_t tiles_per_block;  ///< 16-token tiles
  std::uint64_t block_of_tile;    ///< ceil(2^32 / tiles_per_block)
  float logit_scale;              ///< of a product, to log2
  float cap;                      ///< soft cap, in log2
  float cap_slope;                ///< 2 log2(e) scale / soft_cap
  bool is_bf16;                   ///< q and out are bf16
};

/// All that a launch passes to the kernel.
struct Launch {
  ColumnsParams params;
  ColumnsWorkspace workspace;
  Constants constants;
  const std::int32_t* tile_tokens;  ///< query tokens of the members of all tiles

  /// Returns whether the step may have rows with a prefix.
  bool has_members() const {
    return params.prefixes != nullptr && params.limits.shared_rows > 0 && params.window_tokens == 0;
  }
  __device__ __forceinline__ char* at(std::int64_t offset) const {
    return static_cast<char*>(params.workspace) + offset;
  }
  __device__ __forceinline__ int* counters() const {
    return reinterpret_cast<int*>(at(workspace.counters));
  }
  __device__ __forceinline__ float2* max_sum() const {
    return reinterpret_cast<float2*>(at(workspace.max_sum));
  }
  __device__ __forceinline__ float* outputs() const {
    return reinterpret_cast<float*>(at(workspace.outputs));
  }
  __device__ __forceinline__ const ColumnsItem* items() const {
    return reinterpret_cast<const ColumnsItem*>(at(workspace.items));
  }
  __device__ __forceinline__ const ColumnsSegment* segments() const {
    return reinterpret_cast<const ColumnsSegment*>(at(workspace.segments));
  }
  /// Returns the query token of a column, counted in its row or tile. `column` is less than 2^16.
  __device__ __forceinline__ int token_of(int column) const {
    if (constants.group == 1) return column;
    return static_cast<int>(__umulhi(static_cast<unsigned>(column), constants.group_inverse));
  }
};

/// The place of a query column in q, out and lse.
struct Place {
  std::int64_t token;  ///< query token
  int head;            ///< query head
};
__device__ __forceinline__ Place place_of(const Launch& launch, int q_begin, int head, int column) {
  const int token = launch.token_of(column);
  const int group = launch.constants.group;
  return {std::int64_t{q_begin} + token, head * group + column - token * group};
}
/// Returns the bytes from the begin of q or out, of kDim dims a head, to the place's dim 0.
template <int kDim>
__device__ __forceinline__ std::int64_t bytes_to(const Place& place, std::int64_t token_stride) {
  return place.token * token_stride + place.head * (kDim * 2);
}

/// Loads segment `index`, which the schedule wrote before this kernel began. Lane i of the warp
/// gets word i % 16: this takes a register for the time until the segment is used, not sixteen.
__device__ __forceinline__ int load_words(const Launch& launch, int index, int lane) {
  return __ldg(reinterpret_cast<const int*>(launch.segments() + index) + lane % 16);
}
/// Returns the segment that the lanes of the warp hold.
__device__ __forceinline__ ColumnsSegment segment_of(int words) {
  ColumnsSegment segment;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    reinterpret_cast<int*>(&segment)[i] = __shfl_sync(~0U, words, i);
  }
  return segment;
}

/// Loads an item; the schedule wrote it.
__device__ __forceinline__ ColumnsItem load_item(const Launch& launch, int index) {
  ColumnsItem item;
  const auto* const words = reinterpret_cast<const int4*>(launch.items() + index);
#pragma unroll
  for (int i = 0; i < 2; ++i) reinterpret_cast<int4*>(&item)[i] = __ldg(words + i);
  return item;
}

/// Returns the factor of the stored K or V of a KV head: 1 in types that need none.
template <class C>
__device__ __forceinline__ float stored_scale(const Launch& launch, const float* scales, int head) {
  if constexpr (!C::kIsFp8) return 1.0F;
  return scales == nullptr ? 1.0F : __ldg(scales + (launch.params.scales.per_head ? head : 0));
}

/// Returns two numbers as a pair of 16-bit ones.
template <class T>
__device__ __forceinline__ std::uint32_t pack(float low, float high);
template <>
__device__ __forceinline__ std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}
template <>
__device__ __forceinline__ std::uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

/// Returns two numbers of the output as a pair of its type.
template <class C>
__device__ __forceinline__ std::uint32_t pack_out(const Launch& launch, float low, float high) {
  if constexpr (C::kIsFp8) {
    if (launch.constants.is_bf16) return pack<__nv_bfloat16>(low, high);
  }
  return pack<typename C::T>(low, high);
}

}  // namespace kvarena::kernels::columns
