#pragma once

/// @file
/// Token moves: copying tokens from one plane to another. A plane is a paged pool in either tile
/// order, or contiguous [tokens, heads, dim] memory, which counts as a plane of one block. Append,
/// scatter, gather and conversion are token moves with different maps from a token to its places.

#include "kernels/params.h"

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvarena::kernels {

/// The way in which a move finds the two places of token `i`.
enum class TokenMap : std::uint8_t {
  slots,   ///< contiguous: token i; pool: slots[i]
  runs,    ///< contiguous: token i; pool: through the table of the run that holds i
  span,    ///< contiguous: token i; pool: position first_token + i of one row of the tables
  gather,  ///< as span, but from the pool to contiguous memory
  copies,  ///< two pools: token i % block_size of copies[i / block_size]
};

/// The K part or the V part of a move.
struct PlaneMove {
  PlaneView from;       ///< read
  PlaneView to;         ///< written
  const float* scales;  ///< of the side that is fp8; or null
};

/// Bytes from one token to the next of contiguous key and value; 0: dense.
struct FlatStrides {
  std::int64_t key = 0;    ///< of key
  std::int64_t value = 0;  ///< of value
};

inline constexpr int kNumTokenMaps = 5;  ///< number of TokenMap values

/// One move. A token whose slot, row, table entry or block lies outside the pool is skipped.
struct TokenMove {
  PlaneMove planes[2];              ///< `planes[0 .. num_planes - 1]`
  std::int32_t num_planes;          ///< 1 or 2
  TokenMap map;                     ///< decides which of the fields below are used
  bool scale_per_head;              ///< for PlaneMove::scales
  std::int32_t block_size;          ///< of the pool, or of both pools
  std::int32_t block_shift;         ///< log2 of block_size, or -1
  std::uint32_t head_reciprocal;    ///< for divisions by units a head; set by the launch
  bool overlap;                     ///< launch programmatically, see append.h
  std::int64_t num_tokens;          ///< 0 .. 2^31 - 1
  std::int64_t num_blocks;          ///< of the pool; with copies: of the source pool
  std::int64_t num_target_blocks;   ///< copies only: of the target pool
  const std::int64_t* slots;        ///< slots only
  const TokenRun* runs;             ///< runs only
  const std::int64_t* run_offsets;  ///< runs only
  std::int64_t num_runs;            ///< runs only
  float runs_per_token;             ///< runs only: num_runs / num_tokens, for the first guess
  BlockTableView tables;            ///< runs and span
  std::int32_t row;                 ///< span only
  std::int32_t first_token;         ///< span only
  const BlockCopy* copies;          ///< copies only
};

/// Makes the part of a move that all maps share, between `kv` and contiguous `key` and `value`. A
/// null `key` or `value` is not moved.
TokenMove make_token_move(TokenMap map, const KvLayerView& kv, void* key, void* value, DType dtype,
                          const QuantScales& scales, const FlatStrides& strides = {}) noexcept;

/// Loads the kernels of moves to this type (load_kernel.h).
Status load_token_move(TokenMap map, DType to) noexcept;

/// Queues a move whose planes and map have been checked. Does nothing without tokens or planes.
/// Returns unsupported (dtype) for a pair of types without a kernel, invalid_argument (num_tokens),
/// or device_error.
Status launch_token_move(const TokenMove& move, cudaStream_t stream) noexcept;

}  // namespace kvarena::kernels
