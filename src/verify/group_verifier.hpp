#pragma once

/// @file
/// `GroupVerifier`: verifies a cache whose layers keep different data. As KvVerifier it writes K
/// and V, and the keys of a sparse-attention index, that are a function of the sequence and
/// compares bytes and attention with what is derived again. A block of a window or a chunk is
/// compared in the step after which it leaves, the others when their sequence ends. States are
/// compared in each step (`StateVerifier`). Content is made and compared on the host, on a GPU too.
/// One thread at a time.

#include "verify/failure.hpp"
#include "verify/pool_bytes.hpp"
#include "verify/sequence.hpp"
#include "verify/step_verifier.hpp"
#include "verify/verification.hpp"
#include "verify/verifier.hpp"

#include "kvarena/base/group_layout.hpp"
#include "kvarena/blocktable/table_groups.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace kvarena::verify {

/// Stands for the kernels of recurrent layers: in each step it compares the state that it reads
/// with what the tokens before the step make, and writes what the step's tokens make. The state of
/// a layer is a pattern of the prefix hash of its sequence, so it depends on every token before it,
/// on the layer and on the place. Borrows the cache.
class StateVerifier {
 public:
  /// A state is written and compared in pieces of so many bytes.
  static constexpr std::int64_t kPieceBytes = 4096;
  /// With AttentionMode::sample, the first, the last and each of so many pieces of a plane.
  static constexpr std::int64_t kSampledPiece = 64;

  StateVerifier(AttentionMode mode, KvCache& cache) : mode_(mode), cache_(cache), bytes_(cache) {}
  /// Finds the layers with states. Returns what KvCache::state_view returns.
  Status find_layers();
  bool has_layers() const noexcept { return !layers_.empty(); }

  /// Compares the states that the step reads and writes those that it has to write. `before` has
  /// the prefix hash of each row in front of the step, `hashes` those of its new tokens, row by
  /// row. Adds to `report`. Waits for the device.
  MaybeFailure verify_step(std::span<const StepRow> rows, std::span<const StateSlots> states,
                           std::span<const std::uint64_t> before,
                           std::span<const std::uint64_t> hashes, VerificationReport& report);
  /// Compares the present state of a sequence and its checkpoints. `hashes` are those of its
  /// tokens. Waits for the device.
  MaybeFailure check_sequence(const WrittenSequence& sequence,
                              std::span<const std::uint64_t> hashes, VerificationReport& report);

 private:
  struct Layer {
    std::int32_t layer = 0;
    StateView view;
  };
  /// A state in the pool and what it should be.
  struct State {
    const WrittenSequence* sequence = nullptr;
    std::int64_t length = 0;  // tokens in front of it; 0: zeros
    std::uint64_t hash = 0;
    std::int32_t slot = 0;
  };
  /// A piece of a plane.
  struct Piece {
    std::size_t plane = 0;
    std::int64_t offset = 0;  // in the plane
    std::int64_t bytes = 0;
  };

  std::vector<Piece> pieces_of(const StateView& view) const;
  void fill(const Layer& layer, const State& state, const Piece& piece, std::byte* out) const;
  MaybeFailure compare(const Layer& layer, const State& state, VerificationReport& report);
  MaybeFailure write(const Layer& layer, const State& state, VerificationReport& report);
  MaybeFailure wrong_byte(const Layer& layer, const State& state, const Piece& piece,
                          const std::byte* found, const std::byte* wanted,
                          VerificationReport& report) const;
  MaybeFailure verify_row(const StateSlots& slots, const StepRow& row, std::size_t number,
                          std::uint64_t before, std::span<const std::uint64_t> hashes,
                          VerificationReport& report);
  MaybeFailure check_at(const WrittenSequence& sequence, std::int64_t length, std::uint64_t hash,
                        std::int32_t group, VerificationReport& report);

  AttentionMode mode_;
  KvCache& cache_;
  PoolBytes bytes_;
  std::vector<Layer> layers_;
  std::vector<std::byte> found_;
  std::vector<std::byte> wanted_;
  std::vector<BlockId> blocks_;
  std::vector<Generation> generations_;
  std::vector<std::int64_t> lengths_;
};

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
    std::int32_t index_dim = 0;       // of a sparse-attention index; 0: none
    std::int64_t key_bytes = 0;       // of one token in one layer
    std::int64_t value_bytes = 0;     // of V that is not in K
    std::int64_t index_bytes = 0;     // of a key of the index, as it is given to the cache
  };
  /// A layer with K and V, or one that reads those of another.
  struct Layer {
    std::int32_t layer = 0;
    std::int32_t owner = 0;
    std::int32_t part = 0;  // its table
    std::size_t group = 0;
    KvLayerView view;
    PlaneView index;  // where the layer has one
    bool owns() const noexcept { return layer == owner; }
  };

  GroupVerifier(const VerifierOptions& options, KvCache& cache);
  Status add_group(const LayerGroup& group);
  Status allocate();
  void take_hashes(std::span<const StepRow> rows);
  MaybeFailure write_layers();
  Status write_layer(const Layer& layer, std::int64_t offset);
  Status write_index(const Layer& layer, std::int64_t offset);
  MaybeFailure check_leaving(std::span<const StepRow> rows);
  MaybeFailure check_tokens(const WrittenSequence& sequence, Group& group, std::int64_t first,
                            std::int64_t end);
  MaybeFailure check_layer(const WrittenSequence& sequence, const Layer& layer, std::int64_t first,
                           std::int64_t end);
  MaybeFailure check_index(const WrittenSequence& sequence, const Layer& layer, std::int64_t first,
                           std::int64_t end);
  MaybeFailure wrong_index(const WrittenSequence& sequence, const Layer& layer, std::int64_t first,
                           std::int64_t token, std::string_view what, std::string wanted);
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
  StagedBytes content_;        // K, V and index keys of some layers
  StagedBytes queries_;
  StagedBytes outputs_;
  std::vector<std::uint64_t> before_;       // of each row, in front of the step
  std::vector<std::uint64_t> step_hashes_;  // of the step's new tokens, row by row
  std::vector<std::uint64_t> hashes_;       // of a whole sequence
  std::vector<std::int64_t> blocks_;
  std::vector<std::byte> rows_;
  std::vector<std::byte> index_row_;
  std::vector<float> scales_;
  std::int64_t steps_ = 0;
  std::int64_t next_turn_ = 0;
  std::int64_t turns_ = 0;
  std::int64_t checks_ = 0;  // of tokens of a group
  VerificationReport report_;
};

}  // namespace kvarena::verify
