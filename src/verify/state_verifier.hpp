#pragma once

/// @file
/// `StateVerifier`: the states of recurrent layers. It stands for their kernels: in each step it
/// compares the state that it reads with what the tokens before the step make, and writes what the
/// step's tokens make. The state of a layer is a pattern of the prefix hash of its sequence, so it
/// depends on every token before it, on the layer and on the place. Borrows the cache. One thread
/// at a time.

#include "verify/failure.hpp"
#include "verify/pool_bytes.hpp"
#include "verify/sequence.hpp"
#include "verify/verification.hpp"

#include "kvarena/blocktable/table_groups.hpp"
#include "kvarena/cache/kv_cache.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena::verify {

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

}  // namespace kvarena::verify
