#pragma once

/// @file
/// The inner loops of CPU attention: a table of functions for each (path, dtype). A tile is up to
/// `kChunkTokens` tokens of one kv head with a few query rows. Sources compiled for newer
/// instruction sets include this header too, so it must have no inline function that could be
/// linked elsewhere.

#include "kvarena/base/dtype.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena::attention {

inline constexpr std::int32_t kChunkTokens = 64;  ///< tokens of a tile, and the stride of the score
                                                  ///< buffer
inline constexpr std::int32_t kRowSlots = 80;     ///< entries of a row list: a tile and 16 more
inline constexpr std::int32_t kDimPad = 32;       ///< query and accumulator rows are padded to a
                                                  ///< multiple of this

/// The places of the tokens' elements of one head. Up to 15 entries behind `count`, and the memory
/// they point to, are read too, but do not affect the result.
struct TokenRows {
  const std::byte* const* rows;   ///< [count + 15] tokens to compute with
  const std::byte* const* ahead;  ///< [count + 15] rows to prefetch during the computation; null:
                                  ///< none
  std::int32_t count;             ///< 1 .. kChunkTokens
};

/// The functions of one path for K and V of one dtype.
struct TileOps {
  /// s[r][t] = dot(q[r], key[t]). q is [num_q, q_stride], zero past `dim`. s is [num_q,
  /// kChunkTokens]; tokens up to the next multiple of 16 are written.
  void (*score)(const float* q, std::int64_t q_stride, std::int32_t num_q, const TokenRows& keys,
                std::int32_t dim, float* s);
  /// One step of the online softmax in base 2. With `cap` > 0 it first sets s = cap * tanh(s). Then
  /// m' = max(m, s), s = 2^(s - m'), l = l * c + sum(s), m = m'. Returns c = 2^(m - m').
  float (*soften)(float* s, std::int32_t count, float cap, float* m, float* l);
  /// acc[r] = acc[r] * correction[r] + sum_t p[r][t] * value[t]. p is [num_q, kChunkTokens], acc is
  /// [num_q, acc_stride].
  void (*weigh)(const float* p, const float* correction, std::int32_t num_q,
                const TokenRows& values, std::int32_t dim, float* acc, std::int64_t acc_stride);
  /// Whether the rows of q and acc store each 32 dims as 16 even ones, then 16 odd ones.
  bool interleaved;
};

/// Plain C++ for any machine. `dtype` is f32, f16 or bf16.
const TileOps& portable_tile_ops(DType dtype) noexcept;

/// AVX-512 (F, BW, DQ, VL). Call it only where the CPU has these.
const TileOps& avx512_tile_ops(DType dtype) noexcept;

}  // namespace kvarena::attention
