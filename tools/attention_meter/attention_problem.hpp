#pragma once

/// @file
/// `AttentionProblem`: a measured problem: the shape of one attention layer and the lengths of a
/// batch. The functions compute the bytes that decoding must read. Plain values and pure functions
/// for any thread.

#include "kvarena/base/dtype.hpp"

#include <cstdint>
#include <vector>

namespace kvarena::meter {

/// One layer.
struct AttentionShape {
  std::int32_t num_q_heads = 32;   ///< a multiple of num_kv_heads
  std::int32_t num_kv_heads = 8;   ///< KV heads
  std::int32_t head_dim = 128;     ///< elements, of K and of V
  std::int32_t block_size = 16;    ///< tokens a block
  std::int32_t q_len = 1;          ///< query tokens a sequence
  std::int32_t window_tokens = 0;  ///< sliding window, 0: none
  DType dtype = DType::bf16;       ///< of K and V

  /// Type of q and of the output: that of K and V, or bf16 over fp8.
  DType q_dtype() const noexcept { return dtype == DType::fp8_e4m3 ? DType::bf16 : dtype; }
};

/// One row of a table: a batch in one layer.
struct AttentionProblem {
  AttentionShape shape;
  std::vector<std::int32_t> lengths;  ///< [sequences] tokens, each at least q_len
};

/// The rotation of a measurement's calls over `num_tables` sets of block tables. The sets have
/// disjoint blocks, so caches hold nothing of a set when a call uses it again. Calls run back to
/// back.
struct Rotation {
  std::int32_t num_tables = 1;  ///< 1 .. 64
  std::int32_t num_calls = 1;   ///< in one measured round, at least num_tables
};

/// Bytes of K and V of a block of one layer.
std::int64_t block_bytes(const AttentionShape& shape) noexcept;
/// Blocks that hold `tokens` tokens.
std::int64_t num_blocks(const AttentionShape& shape, std::int64_t tokens) noexcept;
/// Blocks of all sequences.
std::int64_t num_blocks(const AttentionProblem& problem) noexcept;
/// Bytes of K and V that one call has to read: of the tokens that some query token sees.
std::int64_t kv_bytes(const AttentionProblem& problem) noexcept;
/// Tables over at least `rotated_bytes` of KV, calls over `rounds` times that; at most 64 of each.
Rotation rotation_of(const AttentionProblem& problem, std::int64_t rotated_bytes,
                     std::int32_t rounds) noexcept;
/// Bytes of pool that a problem's tables need, and its plain reads beside them.
std::int64_t pool_bytes(const AttentionProblem& problem, std::int64_t rotated_bytes) noexcept;

}  // namespace kvarena::meter
