#pragma once

/// @file
/// `ScrubPlanner`: decides which blocks a step clears before its tokens are written. It remembers
/// the last writer of each block, and how many leading tokens of the block may be of others. All
/// memory is allocated at construction. One thread at a time.
///
/// The bytes of a block behind these leading tokens were written by its last writer, or are zero.
/// In a pool of pages each part of the groups has a planner. A page that goes to another part is
/// cleared as a whole (`PageWriters`), so that its blocks are clean when tokens enter them.
///
/// The blocks of an encoder are cleared by the first append of a sequence that has them, once while
/// they are held: others may have written them when the next of their sequences appends first.
///
/// A step whose tokens begin at token `kept` of a block clears the block from there on in two
/// cases: its last writer is another owner, or `kept` lies in front of the end of the leading
/// tokens, so that tokens of others would stand behind the new ones. In both cases the first `kept`
/// tokens are the block's leading tokens from then on. A block that is entered (`kept` is 0) is the
/// same case. A copy on write gets the shared tokens and then zeros.

#include "base/lazy_array.hpp"
#include "cache/page_writers.hpp"
#include "kernels/params.h"
#include "kvarena/allocator/block_manager.hpp"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "step/step_ring.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace kvarena {

/// The scrubs of a step, done before any of its tokens is written. `copies` come before `clears`,
/// because a copied block may be cleared behind the tokens of the sequence that keeps it.
struct ScrubPlan {
  std::span<const kernels::BlockScrub> copies;  ///< on write
  std::span<const kernels::BlockScrub> clears;  ///< in place
};

/// The blocks of a planner.
struct ScrubBlocks {
  std::int64_t num_ids = 0;             ///< ids are less than this
  std::int32_t block_size_tokens = 0;   ///< tokens of a block
  std::int32_t part = 0;                ///< with groups: of the groups
  std::int64_t ids_per_page = 0;        ///< with groups: as TableGroup has them; otherwise 0
  std::int32_t max_sequences = 0;       ///< in a group of encoders; otherwise 0
  std::int32_t max_encoder_tokens = 0;  ///< of a sequence, in a group of encoders; otherwise 0
  std::int64_t block_bytes = 0;         ///< with groups: of a block, with padding
  std::int64_t ids_per_block = 1;       ///< with groups: as TableGroup has them; otherwise 1
};

/// The planner of one cache, or of one part of its groups.
class ScrubPlanner {
 public:
  /// Makes a planner. `mode` is not never; `pages` outlives it, and is null without groups. Throws
  /// std::bad_alloc.
  ScrubPlanner(Scrub mode, const ScrubBlocks& blocks, const StepLimits& limits,
               PageWriters* pages = nullptr);
  /// Returns the host memory of a planner. It is an upper bound, because the system commits lists
  /// when they are first used.
  static std::int64_t host_bytes(const ScrubBlocks& blocks, const StepLimits& limits) noexcept;
  /// Returns the most entries that the clears of a step have.
  static std::int64_t max_clears(const ScrubBlocks& blocks, const StepLimits& limits) noexcept;

  /// Plans the scrubs for the last append of `tables`. They count as done from now on. `slots` and
  /// `copies` are those of the planner's blocks. The plan is valid until the next plan. O(demands +
  /// blocks that tokens enter).
  ScrubPlan plan(const BlockTables& tables, std::span<const AppendDemand> demands,
                 std::span<const AppendedRow> rows, const std::int64_t* slots,
                 std::span<const BlockCopy> copies) noexcept;
  /// The same in a group of encoders: clears the blocks of encoders whose sequences append for the
  /// first time. A block in which an append of another sequence has entered keeps its tokens.
  /// O(demands + blocks of encoders).
  ScrubPlan plan_encoders(const BlockManager& manager, const BlockTables& tables,
                          std::span<const AppendDemand> demands) noexcept;
  /// Says that the last append was taken back, in a group of encoders.
  void note_abort() noexcept;
  /// Says that the last plan was not carried out, or only in part, so that the content of its
  /// blocks is unknown. O(its size).
  void forget() noexcept;
  /// Notes that a fork may have tokens of another owner.
  void note_fork(const SequenceInfo& parent, const SequenceInfo& child) noexcept;
  /// Notes that a sequence may continue in a block that another one wrote.
  void note_foreign_tails() noexcept { has_inherited_tails_ = true; }
  /// Notes that others write a block, so that its content is unknown. `generation` is the block's.
  void note_import(BlockId block, Generation generation) noexcept;
  /// Says that nobody knows which scrubs were carried out, so that the content of all blocks is
  /// unknown. O(ids).
  void distrust() noexcept;

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
  std::uint64_t& seen(SequenceId sequence) noexcept;
  bool note_entered(BlockId block, Generation generation) noexcept;
  void enter_encoder(const BlockTables& tables, Row& row, BlockId block, Generation generation,
                     std::int32_t num_tokens) noexcept;
  void note_unknown(BlockId block) noexcept;
  ScrubPlan planned() const noexcept;
  void set_page(std::int64_t page, std::uint16_t content) noexcept;
  void enter(BlockId block) noexcept;
  bool is_clean(BlockId block) const noexcept;
  void clear_entered(const BlockTables& tables, Row& row, BlockId block) noexcept;

  Scrub mode_;
  ScrubBlocks blocks_;
  PageWriters* pages_;
  std::int32_t block_size_;
  std::int32_t shift_;                // log2 of the block size when it is a power of two
  bool is_power_of_two_;              // whether the block size is one
  LazyArray<std::uint64_t> writers_;  // [num_ids] owner or sequence that wrote last; 0: unknown, or
                                      // nobody since the block was cleared (is_clean)
  // [num_ids] The leading tokens that may be of another owner than the last writer; fewer than a
  // block has, because the last writer wrote behind them.
  LazyArray<std::uint16_t> foreign_tokens_;
  LazyArray<kernels::BlockScrub> copies_;
  LazyArray<kernels::BlockScrub> clears_;
  std::size_t num_copies_ = 0;
  std::size_t num_clears_ = 0;
  // In a group of encoders:
  LazyArray<std::uint64_t> seen_;      // [max_sequences] id of a sequence that has appended
  LazyArray<std::uint32_t> entered_;   // [num_ids] 1 + the generation that was entered last
  std::vector<SequenceId> encoders_;   // of the last plan
  LazyArray<BlockId> encoder_blocks_;  // the blocks that it entered
  std::size_t num_encoder_blocks_ = 0;
  bool has_inherited_tails_ = false;  // a sequence may continue in a block that another one wrote
};

}  // namespace kvarena
