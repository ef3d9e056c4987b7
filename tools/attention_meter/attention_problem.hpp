#pragma once

/// @file
/// `AttentionProblem`: a measured problem: the shape of one attention layer and the rows of a
/// batch. The functions compute the bytes that attention must read and the operations that it must
/// do. Plain values and pure functions for any thread.

#include "kvarena/base/dtype.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/latent_fp8.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvarena::meter {

/// One layer.
struct AttentionShape {
  std::int32_t num_q_heads = 32;      ///< a multiple of num_kv_heads
  std::int32_t num_kv_heads = 8;      ///< KV heads
  std::int32_t head_dim = 128;        ///< elements, of K and of V
  std::int32_t own_value_dim = 0;     ///< not 0: elements of V
  std::int32_t latent_value_dim = 0;  ///< not 0: V is so many leading elements of K
  std::int32_t block_size = 16;       ///< tokens a block
  std::int32_t q_len = 1;          ///< query tokens a sequence, where a problem does not list them
  std::int32_t window_tokens = 0;  ///< sliding window, 0: none
  float soft_cap = 0.0F;           ///< of the logits, 0: none
  DType dtype = DType::bf16;       ///< of K and V

  /// Type of q and of the output: that of K and V, or bf16 over 8 bits.
  DType q_dtype() const noexcept { return bytes_of(dtype) == 1 ? DType::bf16 : dtype; }
  /// Elements of V and of an output.
  std::int32_t value_dim() const noexcept {
    if (latent_value_dim > 0) return latent_value_dim;
    return own_value_dim > 0 ? own_value_dim : head_dim;
  }
  /// Bytes of a token and KV head in the pool.
  std::int64_t pool_bytes() const noexcept {
    const std::int64_t key = row_bytes(dtype, head_dim);
    return latent_value_dim > 0 ? key : key + row_bytes(dtype, value_dim());
  }
};

/// One row of a table: a batch in one layer.
struct AttentionProblem {
  AttentionShape shape;
  std::vector<std::int32_t> lengths;  ///< [sequences] tokens, each at least its query tokens
  std::vector<std::int32_t> query_tokens = {};  ///< [sequences]; empty: shape.q_len each
  /// Leading tokens that the sequences of a group share, in whole blocks. No window then.
  std::int32_t shared_tokens = 0;
  std::int32_t num_groups = 1;   ///< sequence `s` is in group `s % num_groups`
  bool reads_shared = true;      ///< whether attention is told to look for shared blocks
  bool batch_invariant = false;  ///< GPU: whether no sequence's bits may depend on the others
  std::string name = {};         ///< of a known row; empty: none
  /// Measured in turn with this one, to compare the speed: their times are added up.
  std::vector<AttentionProblem> beside = {};

  /// Query tokens of sequence `row`.
  std::int32_t queries_of(std::size_t row) const noexcept {
    return query_tokens.empty() ? shape.q_len : query_tokens[row];
  }
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
/// Blocks of all sequences, shared ones counted once.
std::int64_t num_blocks(const AttentionProblem& problem) noexcept;
/// Query tokens of all sequences.
std::int64_t num_query_tokens(const AttentionProblem& problem) noexcept;
/// Most query columns (query tokens x heads of a KV head) of a sequence.
std::int64_t most_columns(const AttentionProblem& problem) noexcept;
/// Tokens that query token `query` of sequence `row` sees.
std::int32_t tokens_seen(const AttentionProblem& problem, std::size_t row,
                         std::int32_t query) noexcept;
/// Operations of the two matrix products over the tokens that each query token sees: 2 * (head_dim
/// of K + that of V) * num_q_heads * tokens. A multiply-add is two.
double flops(const AttentionProblem& problem) noexcept;
/// Bytes of K and V that one call has to read: of the tokens that some query token sees. Shared
/// tokens count once.
std::int64_t kv_bytes(const AttentionProblem& problem) noexcept;
/// Tables over at least `rotated_bytes` of KV, calls over `rounds` times that; at most 64 of each.
Rotation rotation_of(const AttentionProblem& problem, std::int64_t rotated_bytes,
                     std::int32_t rounds) noexcept;
/// Bytes of pool that a problem's tables need, and its plain reads beside them. The problem and
/// each of those beside it have a share of the same size.
std::int64_t pool_bytes(const AttentionProblem& problem, std::int64_t rotated_bytes) noexcept;
/// Block tables of all sequences, one set after another. The entries past the end of a sequence are
/// `unused`; each row has `stride` entries. `ids` are the blocks to use, in their order.
std::vector<BlockId> block_tables(const AttentionProblem& problem, std::int32_t num_tables,
                                  std::int64_t stride, std::span<const BlockId> ids,
                                  BlockId unused);
/// Where each row of one set of block tables begins: [sequences].
std::vector<std::int64_t> row_offsets(const AttentionProblem& problem, std::int64_t stride);
/// The first query token of each sequence: [sequences + 1].
std::vector<std::int64_t> q_offsets(const AttentionProblem& problem);
/// The prompt (a sequence without older tokens) with as much work as one of `query_tokens` new
/// tokens behind `cached` older ones, to the nearest 16 tokens.
std::int32_t prompt_of_equal_work(std::int32_t query_tokens, std::int32_t cached) noexcept;

}  // namespace kvarena::meter
