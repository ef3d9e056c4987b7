#pragma once

/// @file
/// `ScrubPlanner`: decides which blocks a step clears before its tokens are written. It remembers
/// the last writer of each block, and how many leading tokens of the block may be of others. All
/// memory is allocated at construction. One thread at a time.
///
/// The bytes of a block behind these leading tokens were written by its last writer, or are zero.
/// A step whose tokens begin at token `kept` of a block clears the block from there on in two
/// cases: its last writer is another owner, or `kept` lies in front of the end of the leading
/// tokens, so that tokens of others would stand behind the new ones. In both cases the first `kept`
/// tokens are the block's leading tokens from then on. A block that is entered (`kept` is 0) is the
/// same case. A copy on write gets the shared tokens and then zeros.

#include "base/lazy_array.hpp"
#include "kernels/params.h"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "step/step_ring.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// The scrubs of a step, done before any of its tokens is written. `copies` come before `clears`,
/// because a copied block may be cleared behind the tokens of the sequence that keeps it.
struct ScrubPlan {
  std::span<const kernels::BlockScrub> copies;  ///< on write
  std::span<const kernels::BlockScrub> clears;  ///< in place
};

/// The planner of one cache.
class ScrubPlanner {
 public:
  /// Makes a planner. `mode` is not never. Throws std::bad_alloc.
  ScrubPlanner(Scrub mode, std::int64_t num_blocks, std::int32_t block_size_tokens,
               const StepLimits& limits);
  /// Returns the host memory of a planner. It is an upper bound, because the system commits lists
  /// when they are first used.
  static std::int64_t host_bytes(std::int64_t num_blocks, std::int32_t block_size_tokens,
                                 const StepLimits& limits) noexcept;
  /// Returns the most entries that the clears of a step have.
  static std::int64_t max_clears(std::int32_t block_size_tokens, const StepLimits& limits) noexcept;

  /// Plans the scrubs for the last append of `tables`. They count as done from now on. The plan is
  /// valid until the next plan. O(demands + blocks that tokens enter).
  ScrubPlan plan(const BlockTables& tables, std::span<const AppendDemand> demands,
                 const AppendResult& appended) noexcept;
  /// Says that the last plan was not carried out, or only in part, so that the content of its
  /// blocks is unknown. O(its size).
  void forget() noexcept;
  /// Notes that a fork may have tokens of another owner.
  void note_fork(const SequenceInfo& parent, const SequenceInfo& child) noexcept;
  /// Notes that a sequence may continue in a block that another one wrote.
  void note_foreign_tails() noexcept { has_inherited_tails_ = true; }
  /// Notes that others write the blocks of a sequence, so that their content is unknown. O(blocks).
  void note_import(const BlockTables& tables, SequenceId sequence) noexcept;

 private:
  /// A row of the append.
  struct Row {
    SequenceId sequence;
    std::uint64_t owner;  // 0: not looked up yet
  };
  std::uint64_t owner_of(const BlockTables& tables, Row& row) const noexcept;
  std::uint16_t& foreign_of(BlockId block) noexcept {
    return foreign_tokens_[static_cast<std::size_t>(block.value)];
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
  std::int32_t shift_;                // log2 of the block size when it is a power of two
  bool is_power_of_two_;              // whether the block size is one
  LazyArray<std::uint64_t> writers_;  // [num_blocks] owner or sequence that wrote last; 0: nobody
  // [num_blocks] The leading tokens that may be of another owner than the last writer; fewer than a
  // block has, because the last writer wrote behind them.
  LazyArray<std::uint16_t> foreign_tokens_;
  LazyArray<kernels::BlockScrub> copies_;
  LazyArray<kernels::BlockScrub> clears_;
  std::size_t num_copies_ = 0;
  std::size_t num_clears_ = 0;
  bool has_inherited_tails_ = false;  // a sequence may continue in a block that another one wrote
};

/// Returns the params of a scrub of the pool, without a list. The layers of `arena` are uniform.
kernels::ScrubParams scrub_params(const Arena& arena) noexcept;

}  // namespace kvarena
