#pragma once

/// @file
/// `ScrubPlanner`: which blocks a step clears before its tokens are written. Remembers for each
/// block who wrote in it last. All memory is taken at construction. One thread at a time.
///
/// What a block holds past the tokens that sequences share of it was written by its last writer, or
/// is zero. So a block is cleared when a first token enters it that is not its last writer's, and
/// behind the tokens that stay when a fork of another owner goes on in it. A copy on write gets the
/// shared tokens, and zeros.

#include "base/lazy_array.hpp"
#include "kernels/params.h"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "step/step_ring.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// What a step does to its blocks before any of its tokens is written, `copies` before `clears`: a
/// block copied may be cleared behind the tokens of the sequence that keeps it.
struct ScrubPlan {
  std::span<const kernels::BlockScrub> copies;  ///< on write
  std::span<const kernels::BlockScrub> clears;  ///< in place
};

/// Of one cache.
class ScrubPlanner {
 public:
  /// `mode` is not never. Throws std::bad_alloc.
  ScrubPlanner(Scrub mode, std::int64_t num_blocks, std::int32_t block_size_tokens,
               const StepLimits& limits);
  /// Host memory of one, at most: the system commits lists when they are first used.
  static std::int64_t host_bytes(std::int64_t num_blocks, std::int32_t block_size_tokens,
                                 const StepLimits& limits) noexcept;
  /// Entries that the clears of a step have at most.
  static std::int64_t max_clears(std::int32_t block_size_tokens, const StepLimits& limits) noexcept;

  /// For the last append of `tables`, which counts as done from now on. Valid until the next plan.
  /// O(demands + blocks that tokens enter).
  ScrubPlan plan(const BlockTables& tables, std::span<const AppendDemand> demands,
                 const AppendResult& appended) noexcept;
  /// The last plan was not carried out, or in part: nobody knows what its blocks hold. O(its size).
  void forget() noexcept;
  /// A sequence has tokens of another owner's.
  void note_fork(const SequenceInfo& parent, const SequenceInfo& child) noexcept;

 private:
  /// A row of the append.
  struct Row {
    SequenceId sequence;
    std::uint64_t owner;  // 0: not looked up
  };
  std::uint64_t owner_of(const BlockTables& tables, Row& row) const noexcept;
  std::uint8_t& is_mixed(BlockId block) noexcept {
    return is_mixed_[static_cast<std::size_t>(block.value)];
  }
  std::uint64_t& writer_of(BlockId block) noexcept {
    return writers_[static_cast<std::size_t>(block.value)];
  }
  void plan_tail(const BlockTables& tables, Row& row, BlockId block, std::int32_t kept,
                 std::span<const BlockCopy> copies) noexcept;
  void clear(BlockId block, std::int32_t kept_tokens, std::uint64_t owner) noexcept;
  ScrubPlan planned() const noexcept;

  Scrub mode_;
  std::int32_t block_size_;
  std::int32_t shift_;                // of a power of two
  bool is_power_of_two_;              // the block size
  LazyArray<std::uint64_t> writers_;  // [num_blocks] the last owner or sequence to write; 0: nobody
  LazyArray<std::uint8_t> is_mixed_;  // [num_blocks] tokens of another owner stand before its own
  LazyArray<kernels::BlockScrub> copies_;
  LazyArray<kernels::BlockScrub> clears_;
  std::size_t num_copies_ = 0;
  std::size_t num_clears_ = 0;
  bool has_inherited_tails_ = false;  // a sequence may go on in a block that another one wrote
};

/// A pool as a scrub sees it, without a list. `arena` has uniform layers.
kernels::ScrubParams scrub_params(const Arena& arena) noexcept;

}  // namespace kvarena
