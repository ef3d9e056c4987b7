#pragma once

/// @file
/// `KvVerifier`: holds a replay's KV to account. The bytes that the tables lead to are compared
/// with bytes derived again from the trace alone, and attention through the tables with plain
/// attention in double precision over K and V derived likewise. Nothing of what is compared against
/// comes from the cache. One thread at a time.

#include "replay/engine_pool.hpp"
#include "replay/failure.hpp"
#include "replay/kv_writer.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::replay {

/// Writes and verifies the KV of a replay with attention on.
class KvVerifier {
 public:
  /// `pool` has a cache and outlives the verifier.
  KvVerifier(const ReplayOptions& options, EnginePool& pool);

  /// After a successful append: writes K and V of the new tokens and, when it is the turn of this
  /// step, computes their attention and compares.
  MaybeFailure write_step(std::span<const StepRow> rows);
  /// Before a finished sequence is destroyed: compares its bytes.
  MaybeFailure check_sequence(const Job& job);
  /// What was looked at so far.
  VerificationReport report() const;

 private:
  bool is_turn(std::span<const StepRow> rows);
  MaybeFailure attend(std::span<const StepRow> rows, std::int32_t layer);
  MaybeFailure check_row(const StepRow& row, std::int64_t first_out_token, std::int32_t layer);
  MaybeFailure check_bytes(const Job& job, std::int32_t first_layer, std::int32_t end_layer);
  MaybeFailure wrong_byte(const Job& job, std::int64_t token, std::int32_t layer, RowKind kind,
                          std::int32_t head, const std::byte* found, const std::byte* wanted,
                          std::int64_t bytes);
  std::vector<std::uint64_t> derive_hashes(const Job& job) const;
  void derive_queries(std::span<const std::uint64_t> hashes, std::int32_t layer,
                      std::vector<std::byte>& queries) const;
  void derive_layer(std::span<const std::uint64_t> hashes, std::int32_t layer);

  AttentionMode mode_;
  UniformLayoutOptions shape_;
  std::int32_t num_q_heads_;
  std::int64_t sample_every_;
  EnginePool& pool_;
  KvCache& cache_;
  KvWriter writer_;
  std::vector<std::byte> queries_;  // [tokens, num_q_heads, head_dim_k]
  std::vector<float> outputs_;      // [tokens, num_q_heads, head_dim_v]
  std::vector<std::byte> keys_;     // derived, contiguous [length, num_kv_heads, head_dim_k]
  std::vector<std::byte> values_;
  std::vector<BlockId> blocks_;
  std::int64_t steps_ = 0;
  std::int64_t next_turn_ = 0;  // the step from which on one is verified
  std::int64_t turns_ = 0;
  VerificationReport report_;
};

}  // namespace kvarena::replay
