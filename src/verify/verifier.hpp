#pragma once

/// @file
/// `KvVerifier`: verifies an engine's KV. It compares the bytes at the tables' blocks with bytes
/// derived again from the sequence's description. It compares attention through the tables with
/// plain attention in double precision over derived K and V. The derived side uses nothing from the
/// cache. On a GPU, `full` compares everything on the GPU and a sample on the host too, which
/// verifies the GPU's comparison. One thread at a time.

#include "verify/failure.hpp"
#include "verify/sequence.hpp"
#include "verify/step_memory.hpp"
#include "verify/step_verifier.hpp"
#include "verify/verification.hpp"

#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena::verify {

/// The part of a cache that is written and verified.
struct VerifierOptions {
  AttentionMode mode = AttentionMode::sample;
  UniformLayoutOptions shape;
  std::int32_t num_q_heads = 0;
  std::int64_t sample_every = 64;    ///< steps from one verified step to the next
  std::int64_t max_step_tokens = 0;  ///< new tokens in a step at most
  LayerRange layers{};               ///< layers to write and verify; count 0: all
};

/// Writes and verifies the KV of an engine's sequences.
class KvVerifier final : public StepVerifier {
 public:
  /// The last query tokens of a row, which are compared. K and V of all tokens are compared when
  /// the sequence ends.
  static constexpr std::int32_t kComparedQueries = 4;

  /// Makes a verifier. `cache` must outlive it; `memory` is the memory of that cache.
  KvVerifier(const VerifierOptions& options, const KvCache& cache,
             std::unique_ptr<StepMemory> memory);

  /// Writes K and V of the new tokens, computes attention, and compares. A host computes attention
  /// only in the verified steps, a GPU in every step. Call it after a successful append.
  MaybeFailure write_step(std::span<const StepRow> rows);
  /// Makes the next step that is small enough to verify a verified one, before its regular turn.
  void verify_next() noexcept { next_turn_ = steps_; }
  /// Does write_step without attention, for a step that only fills the cache.
  MaybeFailure write_only(std::span<const StepRow> rows);
  /// Compares the bytes of a finished sequence. Call it before the sequence is destroyed.
  MaybeFailure check_sequence(const WrittenSequence& sequence) override;
  /// Does write_step: layers that are alike have no states.
  MaybeFailure verify_step(std::span<const StepRow> rows, std::span<const StateSlots>) override {
    return write_step(rows);
  }
  /// Returns the counts so far.
  const VerificationReport& report() const noexcept override { return report_; }
  /// Returns the device's time for attention so far. Waits for the device.
  Result<MeasuredReport> measure() override { return memory_->measure(); }

 private:
  std::int64_t decode_kv_bytes(std::span<const StepRow> rows) const noexcept;
  bool is_turn(std::span<const StepRow> rows);
  bool compares_all_there() const noexcept;
  std::int32_t sampled_layer() const noexcept;
  MaybeFailure attend(std::span<const StepRow> rows, std::int32_t first_layer,
                      std::int32_t num_layers, bool turn);
  void collect_queries(std::span<const StepRow> rows);
  MaybeFailure compare_there(std::span<const StepRow> rows, std::int32_t first_layer,
                             std::int32_t num_layers);
  MaybeFailure check_row(std::span<const StepRow> rows, std::size_t row, std::int32_t layer);
  MaybeFailure wrong_attention(const WrittenSequence& sequence, std::int32_t layer,
                               std::span<const float> wanted, const std::byte* found, double error);
  MaybeFailure check_layer(const WrittenSequence& sequence, std::int32_t layer);
  MaybeFailure check_layer_there(const WrittenSequence& sequence, std::int32_t layer);
  MaybeFailure wrong_byte(const WrittenSequence& sequence, std::int64_t offset, std::int32_t layer,
                          RowKind kind, std::byte found, std::byte wanted);
  MaybeFailure disagreement(const std::string& what);

  AttentionMode mode_;
  UniformLayoutOptions shape_;
  std::int32_t num_q_heads_;
  std::int64_t sample_every_;
  LayerRange layers_;
  const KvCache& cache_;
  std::unique_ptr<StepMemory> memory_;
  DerivedContent derived_;
  std::int64_t token_bytes_;                // of K and V in the layers
  std::vector<std::uint64_t> step_hashes_;  // of the step's new tokens, row by row
  std::vector<std::uint64_t> hashes_;       // of whole sequences
  std::vector<QueryToken> queries_;         // of the step, compared on the device
  std::vector<std::size_t> query_rows_;     // the row of each
  std::vector<AttentionSums> sums_;
  std::vector<BlockId> blocks_;
  std::int64_t steps_ = 0;
  std::int64_t next_turn_ = 0;  // the step from which on one is verified
  std::int64_t turns_ = 0;
  VerificationReport report_;
};

}  // namespace kvarena::verify
