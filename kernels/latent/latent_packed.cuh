#pragma once

/// @file
/// The instances that read latents in the format latent_fp8, called packed here. The slabs of
/// shared memory have the rows of the pool as they lie there. Each warpgroup loads its elements
/// into registers and multiplies them as the operand that comes from registers, so nothing that is
/// converted goes through shared memory. The products have tokens or dims as their rows and query
/// columns as their columns. A row has one scale for each run of 128 dims. Logits multiply e4m3 as
/// it is with query columns that are sums of two e4m3 numbers, each run by itself, and its product
/// with the scale. V becomes f16, which is exact: a power of two that is about the largest scale is
/// left to the weights, and the elements are multiplied by the rest. Included by the other
/// latent_packed headers.

#include "kernels/common/hopper_operands.cuh"
#include "kernels/common/hopper_split_query.cuh"
#include "kernels/latent/latent_logits.cuh"

namespace kvarena::kernels::latent {

/// The named barrier of the warpgroups of logits.
inline constexpr int kAllLogitsBarrier = 7;

/// The constants of an instance for packed latents: 16 or 32 columns. With 64 the outputs would
/// take the registers of a warpgroup of logits.
template <int kColumns_>
struct PackedConfig {
  static_assert(kColumns_ == 16 || kColumns_ == 32);
  using T = __nv_bfloat16;  ///< of q and out
  static constexpr bool kPacked = true;
  static constexpr bool kHalves = false;
  static constexpr bool kConverts = false;
  static constexpr bool kScaled = false;
  static constexpr bool kTeams = false;
  static constexpr int kConverters = 0;
  static constexpr int kColumns = kColumns_;    ///< query columns of a thread block
  static constexpr int kDim = kLatentValueDim;  ///< of V and of outputs
  static constexpr int kKeyDim = kLatentDim;    ///< of a latent
  static constexpr int kTokens = 64;            ///< of a slab
  static constexpr int kTiles = kTokens / kTileTokens;
  static constexpr int kStages = 4;
  static constexpr int kRuns = kDim / kLatentFp8Run;
  static constexpr int kRowBytes = kKeyDim * 2;                 ///< of a query column
  static constexpr int kGroupBytes = kAtomTokens * kRowBytes;   ///< of eight query columns
  static constexpr int kAtomBytes = kAtomTokens * kPieceBytes;  ///< of them
  static constexpr int kPoolTileBytes = kTileTokens * kLatentFp8Bytes;
  static constexpr int kPoolTileAt = 0;
  static constexpr int kTileBytes = kPoolTileBytes;
  static constexpr int kSlabBytes = kTiles * kTileBytes;
  static constexpr int kLogitsGroups = 2;  ///< warpgroups of logits
  static constexpr int kLogitsThreads = 128 * kLogitsGroups;
  static constexpr int kThreads = 384 + kLogitsThreads;
  // The weights of a slab: an operand [tokens, columns], as in Config.
  static constexpr int kWeightRow = kColumns * 2;
  static constexpr int kWeightPiece = kWeightRow % kPieceBytes == 0 ? kPieceBytes : kSmallPiece;
  static constexpr Swizzle kWeightSwizzle =
      kWeightPiece == kPieceBytes ? Swizzle::bytes_64 : Swizzle::bytes_32;
  static constexpr int kWeightGroup = kAtomTokens * kWeightRow;
  static constexpr int kWeightAtom = kAtomTokens * kWeightPiece;
  static constexpr int kWeightBytes = kTokens * kWeightRow;
  static constexpr int kWeightBuffers = 2;
  static constexpr int kSums = kColumns / 4;  ///< columns that a thread has a part of
  // Their sum over the warpgroups is what a launch of kThreads gets.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kLogitsRegisters = kColumns == 16 ? 96 : 112;
  static constexpr int kValueRegisters = kColumns == 16 ? 128 : 112;
  // What columns_combine.cuh reads.
  static constexpr bool kCap = false;
  static constexpr bool kHasTiles = false;
};

/// Returns two f16 of two neighbouring e4m3 of a word: the low or the high ones.
__device__ __forceinline__ std::uint32_t widen_low(std::uint32_t word) {
  const __half2_raw pair =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(word & 0xFFFF), __NV_E4M3);
  return pair.x | static_cast<std::uint32_t>(pair.y) << 16;
}
__device__ __forceinline__ std::uint32_t widen_high(std::uint32_t word) {
  return widen_low(word >> 16);
}

/// Returns the products of two pairs of 16-bit numbers.
template <class T>
__device__ __forceinline__ std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
  const Pair c = __hmul2(reinterpret_cast<const Pair&>(a), reinterpret_cast<const Pair&>(b));
  return reinterpret_cast<const std::uint32_t&>(c);
}

/// Keeps the compiler from computing an operand in registers after this place.
template <int kCount>
__device__ __forceinline__ void fence_operands(std::uint32_t (&a)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) asm volatile("" : "+r"(a[i][k])::"memory");
  }
}

/// Returns the scales of a row.
__device__ __forceinline__ float4 load_scales(const char* row) {
  return *reinterpret_cast<const float4*>(row + kLatentFp8ScalesAt);
}
/// Returns scale `run`, which is a constant where this is used.
__device__ __forceinline__ float scale_of_run(const float4& scales, int run) {
  return run == 0 ? scales.x : run == 1 ? scales.y : run == 2 ? scales.z : scales.w;
}

/// Returns a power of two near the largest scale of a row, and not above it if that is normal. Its
/// inverse is a normal number too.
__device__ __forceinline__ int exponent_of(const float4& scales) {
  const float most =
      fmaxf(fmaxf(fabsf(scales.x), fabsf(scales.y)), fmaxf(fabsf(scales.z), fabsf(scales.w)));
  return min(max(static_cast<int>(__float_as_uint(most) >> 23), 67), 187) - 127;
}
__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23);
}

/// Loads the query columns of a segment as operands: their elements as sums of two e4m3 numbers
/// (hopper_split_query.cuh), the larger ones of all runs before the smaller ones, then the
/// positional dims. Each column is first divided by its split_query_power; `shared.factor` has that
/// power times `scale`. The order of the dims is that in which the logits have latents in
/// registers: thread t of a quad has dims 32t .. 32t + 31 of each run, and 16t .. 16t + 15 of the
/// positional ones; step i of a run multiplies its dims 8i .. 8i + 7, and one of the positional
/// dims 4i .. 4i + 3. A unit is eight dims of all t. The threads of both warpgroups call it.
template <class C>
__device__ __forceinline__ void load_packed_query(const Launch& launch, Shared<C>& shared,
                                                  const ColumnsSegment& segment, float scale,
                                                  int thread) {
  constexpr int kUnits = C::kKeyDim / 32;
  constexpr int kOfColumn = C::kLogitsThreads / C::kColumns;  // threads
  constexpr int kAtOnce = (kUnits + kOfColumn - 1) / kOfColumn;
  const ColumnsParams& p = launch.params;
  const int its = thread / kOfColumn;
  const int column = first_column<C>(segment) + its;
  std::uint32_t words[kAtOnce][4][4];  // of a unit: [t][pairs]
  const bool exists = column < segment.columns;
  const columns::Place place =
      columns::place_of(launch, segment.q_begin, segment.head, exists ? column : 0);
  const char* const row =
      static_cast<const char*>(p.q) + place.token * p.q_token_stride + place.head * C::kRowBytes;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int unit = i * kOfColumn + thread % kOfColumn;
    const bool is_run = unit < C::kRuns * 4;
    const int byte =
        is_run ? unit / 4 * (kLatentFp8Run * 2) + unit % 4 * 16 : C::kDim * 2 + unit % 4 * 16;
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      load_piece(words[i][t], row + byte + t * (is_run ? 64 : 32), exists && unit < kUnits);
    }
  }
  __nv_bfloat162 largest_pair = __float2bfloat162_rn(0.0F);
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      const std::uint32_t& pair = words[i][k / 4][k % 4];
      largest_pair = __hmax2(largest_pair, __habs2(reinterpret_cast<const __nv_bfloat162&>(pair)));
    }
  }
  float largest = fmaxf(__low2float(largest_pair), __high2float(largest_pair));
#pragma unroll
  for (int d = 1; d < kOfColumn; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, d));
  const auto [power, inverse] = split_query_power(largest);
  if (thread % kOfColumn == 0) shared.factor[its] = power * scale;
  const auto store = [&](int byte, const std::uint32_t(&out)[4]) {
    *reinterpret_cast<uint4*>(shared.query + chunked_bytes(C::kRowBytes, its, byte)) =
        make_uint4(out[0], out[1], out[2], out[3]);
  };
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int unit = i * kOfColumn + thread % kOfColumn;
    if (unit >= kUnits) continue;
    if (unit < C::kRuns * 4) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        std::uint32_t large[4];
        std::uint32_t small[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float2 low = columns::unpack<typename C::T>(words[i][t][2 * k]);
          const float2 high = columns::unpack<typename C::T>(words[i][t][2 * k + 1]);
          const float x[4] = {low.x * inverse, low.y * inverse, high.x * inverse, high.y * inverse};
          split_word(x, large[t], small[t]);
        }
        store(unit * 32 + k * kChunkBytes, large);
        store((C::kRuns * 4 + unit) * 32 + k * kChunkBytes, small);
      }
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        std::uint32_t out[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float2 pair = columns::unpack<typename C::T>(words[i][t][k]);
          out[t] = columns::pack<typename C::T>(pair.x * inverse, pair.y * inverse);
        }
        // Its first of two steps.
        store((C::kRuns * 8 + unit % 4 * 2) * 32 + k * kChunkBytes, out);
      }
    }
  }
  if (thread < C::kColumns) {
    shared.path[thread] = path_of(launch, segment, first_column<C>(segment) + thread);
  }
  fence_async_proxy();
}

/// Zeroes the tokens of a slab from `tokens` on: their slots may hold anything. Thread `thread` of
/// 128.
template <class C>
__device__ __forceinline__ void clear_packed(char* latents, int tokens, int thread) {
  constexpr int kOfRow = kLatentFp8Bytes / kChunkBytes;
#pragma unroll 1
  for (int chunk = max(tokens, 0) * kOfRow + thread; chunk < C::kTokens * kOfRow; chunk += 128) {
    *reinterpret_cast<uint4*>(latents + chunk * kChunkBytes) = make_uint4(0, 0, 0, 0);
  }
}

/// Returns whether this thread's part of V of the tokens first .. end - 1 of a slab is finite as
/// f16: an element divided by 2^60, which is the largest power of `exponent_of`, must be below
/// 2^16, so scales from 2^67 on are not. Thread `thread` of 128.
template <class C>
__device__ __forceinline__ bool is_packed_finite(const char* latents, int first, int end,
                                                 int thread) {
  constexpr int kOfRow = kLatentFp8PositionAt / kChunkBytes;
  constexpr std::uint32_t kFirstTooLarge = (127U + 67U) << 23;
  bool is_finite = true;
#pragma unroll 1
  for (int chunk = max(first, 0) * kOfRow + thread; chunk < min(end, C::kTokens) * kOfRow;
       chunk += 128) {
    const int at = chunk % kOfRow * kChunkBytes;
    const uint4 words =
        *reinterpret_cast<const uint4*>(latents + chunk / kOfRow * kLatentFp8Bytes + at);
#pragma unroll
    for (const std::uint32_t word : {words.x, words.y, words.z, words.w}) {
      is_finite &= at < kLatentFp8ScalesAt ? __vcmpeq4(word & 0x7F7F7F7FU, 0x7F7F7F7FU) == 0
                                           : (word & 0x7FFFFFFFU) < kFirstTooLarge;
    }
  }
  return is_finite;
}

}  // namespace kvarena::kernels::latent
