#pragma once

/// @file
/// The inner loops of CPU attention, one table of functions for each (path, dtype). A tile is up to
/// `kChunkTokens` tokens of one kv head against a few query rows. This header is also included by
/// sources compiled for newer instruction sets: nothing inline that could be linked elsewhere.

#include "kvarena/base/dtype.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena::attention {

inline constexpr std::int32_t kChunkTokens = 64;  ///< tokens of a tile; the score buffer's stride
inline constexpr std::int32_t kRowSlots = 80;     ///< entries of a row list: a tile and 16 more
inline constexpr std::int32_t kDimPad = 32;       ///< query and accumulator rows are padded to this

/// Where tokens' elements of one head lie. Up to 15 entries past `count` are read too, and what
/// they point to, but do not count.
struct TokenRows {
  const std::byte* const* rows;   ///< [count + 15] tokens to compute with
  const std::byte* const* ahead;  ///< [count + 15] rows to prefetch meanwhile; null: none
  std::int32_t count;             ///< 1 .. kChunkTokens
};

/// Functions of one path for K and V of one dtype.
struct TileOps {
  /// s[r][t] = dot(q[r], key[t]); q is [num_q, q_stride], zero past `dim`; s is
  /// [num_q, kChunkTokens], of which up to a multiple of 16 tokens is written.
  void (*score)(const float* q, std::int64_t q_stride, std::int32_t num_q, const TokenRows& keys,
                std::int32_t dim, float* s);
  /// One step of the online softmax in base 2: with `cap` > 0 first s = cap * tanh(s); then
  /// m' = max(m, s), s = 2^(s - m'), l = l * c + sum(s), m = m'; returns c = 2^(m - m').
  float (*soften)(float* s, std::int32_t count, float cap, float* m, float* l);
  /// acc[r] = acc[r] * correction[r] + sum_t p[r][t] * value[t]; p is [num_q, kChunkTokens], acc is
  /// [num_q, acc_stride].
  void (*weigh)(const float* p, const float* correction, std::int32_t num_q,
                const TokenRows& values, std::int32_t dim, float* acc, std::int64_t acc_stride);
  /// Whether rows of q and acc keep each 32 dims as 16 even ones, then 16 odd ones.
  bool interleaved;
};

/// Plain C++, any machine. `dtype` is f32, f16 or bf16.
const TileOps& portable_tile_ops(DType dtype) noexcept;

/// AVX-512 (F, BW, DQ, VL). To be called only where the CPU has them.
const TileOps& avx512_tile_ops(DType dtype) noexcept;

}  // namespace kvarena::attention
