#pragma once

/// @file
/// `GroupVerifier`: verifies a cache whose layers keep different data. As KvVerifier it writes K
/// and V that are a function of the sequence and compares bytes and attention with what is derived
/// again. A block of a window or a chunk is compared in the step after which it leaves, the others
/// when their sequence ends. States are compared in each step (state_verifier.hpp). Content is made
/// and compared on the host, on a GPU too. One thread at a time.

#include "verify/pool_bytes.hpp"
#include "verify/state_verifier.hpp"
#include "verify/step_verifier.hpp"
#include "verify/verifier.hpp"

#include "kvarena/base/group_layout.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena::verify {

class GroupVerifier final : public StepVerifier {
 public:
  /// Makes a verifier. `groups` are those of the cache, borrowed for the call; options.shape and
  /// options.layers are not used. The cache must outlive it. Returns what Device::allocate and
  /// KvCache::layer_view return.
  static Result<std::unique_ptr<GroupVerifier>> create(const VerifierOptions& options,
                                                       std::span<const LayerGroup> groups,
                                                       KvCache& cache);
  /// Steps that are queued read the staged content.
  ~GroupVerifier() override { static_cast<void>(cache_.synchronize()); }

  MaybeFailure verify_step(std::span<const StepRow> rows,
                           std::span<const StateSlots> states) override;
  MaybeFailure check_sequence(const WrittenSequence& sequence) override;
  const VerificationReport& report() const noexcept override { return report_; }
  Result<MeasuredReport> measure() override { return MeasuredReport{}; }

 private:
  /// A group with K and V.
  struct Group {
    PagedGroup retention;
    UniformLayoutOptions shape;
    bool value_in_key = false;
    DerivedContent derived;
    std::vector<std::size_t> layers;  // places in layers_, of those with data of their own
    std::int64_t key_bytes = 0;       // of one token in one layer
    std::int64_t value_bytes = 0;     // of V that is not in K
  };
  /// A layer with K and V, or one that reads those of another.
  struct Layer {
    std::int32_t layer = 0;
    std::int32_t owner = 0;
    std::int32_t part = 0;  // its table
    std::size_t group = 0;
    KvLayerView view;
    bool owns() const noexcept { return layer == owner; }
  };

  GroupVerifier(const VerifierOptions& options, KvCache& cache);
  Status add_group(const LayerGroup& group);
  Status allocate();
  void take_hashes(std::span<const StepRow> rows);
  MaybeFailure write_layers();
  Status write_layer(const Layer& layer, std::int64_t offset);
  MaybeFailure check_leaving(std::span<const StepRow> rows);
  MaybeFailure check_tokens(const WrittenSequence& sequence, Group& group, std::int64_t first,
                            std::int64_t end);
  MaybeFailure check_layer(const WrittenSequence& sequence, const Layer& layer, std::int64_t first,
                           std::int64_t end);
  MaybeFailure wrong_byte(const WrittenSequence& sequence, const Layer& layer, RowKind kind,
                          std::int64_t first, std::int64_t offset, std::byte found,
                          std::byte wanted);
  bool is_turn(std::span<const StepRow> rows);
  MaybeFailure attend(std::span<const StepRow> rows);
  MaybeFailure attend_layer(std::span<const StepRow> rows, const Layer& layer, std::size_t chosen);
  Status queue_attention(const Layer& layer);
  MaybeFailure check_row(const StepRow& row, std::int64_t end_token, const Layer& layer);
  std::int64_t num_tokens() const noexcept { return std::ssize(step_hashes_); }

  VerifierOptions options_;
  KvCache& cache_;
  PoolBytes bytes_;
  StateVerifier states_;
  DType out_dtype_;
  std::vector<Group> groups_;
  std::vector<Layer> layers_;  // by number
  StagedBytes content_;        // K and V of some layers
  StagedBytes queries_;
  StagedBytes outputs_;
  std::vector<std::uint64_t> before_;       // of each row, in front of the step
  std::vector<std::uint64_t> step_hashes_;  // of the step's new tokens, row by row
  std::vector<std::uint64_t> hashes_;       // of a whole sequence
  std::vector<std::int64_t> blocks_;
  std::vector<std::byte> rows_;
  std::int64_t steps_ = 0;
  std::int64_t next_turn_ = 0;
  std::int64_t turns_ = 0;
  std::int64_t checks_ = 0;  // of tokens of a group
  VerificationReport report_;
};

}  // namespace kvarena::verify
