#pragma once

/// @file
/// Moving tokens between two places, each a plane: a paged pool in either tile order, or contiguous
/// [tokens, heads, dim] memory, which is a plane of one block. Append, scatter, gather and
/// conversion are this with different maps from a token to its places.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvarena::kernels {

/// Where token `i` of a move comes from and goes to.
enum class TokenMap : std::uint8_t {
  slots,   ///< contiguous: token i; pool: slots[i]
  runs,    ///< contiguous: token i; pool: through the table of the run that holds i
  span,    ///< contiguous: token i; pool: position first_token + i of one row of the tables
  gather,  ///< as span, from the pool to contiguous memory
  copies,  ///< two pools: token i % block_size of copies[i / block_size]
};

/// K or V of a move.
struct PlaneMove {
  PlaneView from;       ///< read
  PlaneView to;         ///< written
  const float* scales;  ///< of the side that is fp8, or null
  PlaneKind kind;       ///< which chunked order
};

inline constexpr int kNumTokenMaps = 5;  ///< number of TokenMap values

/// One move. Tokens whose slot, row, table entry or block lies outside the pool are skipped.
struct TokenMove {
  PlaneMove planes[2];              ///< `planes[0 .. num_planes - 1]`
  std::int32_t num_planes;          ///< 1 or 2
  TokenMap map;                     ///< which of the fields below hold
  bool scale_per_head;              ///< of PlaneMove::scales
  std::int32_t block_size;          ///< of the pool or pools
  std::int32_t block_shift;         ///< log2 of block_size, or -1
  std::uint32_t head_reciprocal;    ///< set by the launch
  bool overlap;                     ///< launch programmatically, see append.h
  std::int64_t num_tokens;          ///< 0 .. 2^31 - 1
  std::int64_t num_blocks;          ///< of the pool; of the source pool for copies
  std::int64_t num_target_blocks;   ///< copies: of the target pool
  const std::int64_t* slots;        ///< slots
  const TokenRun* runs;             ///< runs
  const std::int64_t* run_offsets;  ///< runs
  std::int64_t num_runs;            ///< runs
  float runs_per_token;             ///< runs: num_runs / num_tokens, to guess by
  BlockTableView tables;            ///< runs, span
  std::int32_t row;                 ///< span
  std::int32_t first_token;         ///< span
  const BlockCopy* copies;          ///< copies
};

/// The part of a move that all maps share, for K and V of `kv` against contiguous `key` and `value`
/// (either may be null: not moved).
TokenMove make_token_move(TokenMap map, const KvLayerView& kv, void* key, void* value, DType dtype,
                          const QuantScales& scales) noexcept;

/// Queues a move whose planes and map have been checked; no tokens or no planes: nothing.
/// Returns unsupported (dtype) for a pair of types that has no kernel, invalid_argument
/// (num_tokens), or device_error.
Status launch_token_move(const TokenMove& move, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
