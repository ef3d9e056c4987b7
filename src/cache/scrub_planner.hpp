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
/// A step whose tokens begin at token `kept` of a block clears the block from there on in two
/// cases: its last writer is another owner, or `kept` lies in front of the end of the leading
/// tokens, so that tokens of others would stand behind the new ones. In both cases the first `kept`
/// tokens are the block's leading tokens from then on. A block that is entered (`kept` is 0) is the
/// same case. A copy on write gets the shared tokens and then zeros.

#include "base/lazy_array.hpp"
#include "kernels/params.h"
#include "kvarena/blocktable/block_tables.hpp"
#include "kvarena/cache/kv_cache.hpp"
#include "step/step_ring.hpp"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvarena {

/// The scrubs of a step, done before any of its tokens is written. `copies` come before `clears`,
/// because a copied block may be cleared behind the tokens of the sequence that keeps it.
struct ScrubPlan {
  std::span<const kernels::BlockScrub> copies;  ///< on write
  std::span<const kernels::BlockScrub> clears;  ///< in place
};

/// The part of the groups that wrote in each page of a pool last, and the pages that a step clears
/// as a whole because they go to another part: its blocks lie elsewhere in them.
class PageWriters {
 public:
  /// Throws std::bad_alloc.
  explicit PageWriters(std::int64_t num_pages)
      : parts_(static_cast<std::size_t>(num_pages)), clears_(static_cast<std::size_t>(num_pages)) {}
  static std::int64_t host_bytes(std::int64_t num_pages) noexcept {
    return num_pages *
           static_cast<std::int64_t>(sizeof(std::uint16_t) + sizeof(kernels::BlockScrub));
  }

  /// A step begins.
  void begin_step() noexcept { num_clears_ = 0; }
  /// Notes that a step writes blocks of part `part` in a page. When another part, or nobody, wrote
  /// there last, the step clears the page, and the function returns true.
  bool take(std::int64_t page, std::int32_t part) noexcept {
    if (!note(page, part)) return false;
    const BlockId id(static_cast<std::int32_t>(page));
    clears_[num_clears_++] = {id, id, 0};
    return true;
  }
  /// Notes that others write there. Returns whether another part wrote there last.
  bool note(std::int64_t page, std::int32_t part) noexcept {
    const auto its = static_cast<std::uint16_t>(part + 1);
    return std::exchange(parts_[static_cast<std::size_t>(page)], its) != its;
  }
  /// The pages that the step clears, as blocks of their own.
  std::span<const kernels::BlockScrub> clears() const noexcept {
    return {clears_.data(), num_clears_};
  }
  /// Says that the step's pages were not cleared.
  void forget() noexcept {
    for (const kernels::BlockScrub& its : clears()) {
      parts_[static_cast<std::size_t>(its.target.value)] = 0;
    }
  }

 private:
  LazyArray<std::uint16_t> parts_;         // [num_pages] part + 1; 0: nobody
  LazyArray<kernels::BlockScrub> clears_;  // [num_pages]
  std::size_t num_clears_ = 0;
};

/// The blocks of a planner.
struct ScrubBlocks {
  std::int64_t num_ids = 0;             ///< ids are less than this
  std::int32_t block_size_tokens = 0;   ///< tokens of a block
  std::int32_t part = 0;                ///< with groups: of the groups
  std::int64_t ids_per_page = 0;        ///< with groups: as TableGroup has them; otherwise 0
  std::int32_t max_sequences = 0;       ///< in a group of encoders; otherwise 0
  std::int32_t max_encoder_tokens = 0;  ///< of a sequence, in a group of encoders; otherwise 0
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
  /// The same in a group of encoders: clears the blocks that the append took for the encoders of
  /// its sequences. O(demands + blocks of encoders).
  ScrubPlan plan_encoders(const BlockTables& tables,
                          std::span<const AppendDemand> demands) noexcept;
  /// Notes a new sequence in a group of encoders. It has its encoder's blocks already, or takes
  /// them with its first append.
  void note_sequence(const BlockTables& tables, SequenceId sequence) noexcept;
  /// Says that the last append was taken back, in a group of encoders.
  void note_abort(const BlockTables& tables) noexcept;
  /// Says that the last plan was not carried out, or only in part, so that the content of its
  /// blocks is unknown. O(its size).
  void forget() noexcept;
  /// Notes that a fork may have tokens of another owner.
  void note_fork(const SequenceInfo& parent, const SequenceInfo& child) noexcept;
  /// Notes that a sequence may continue in a block that another one wrote.
  void note_foreign_tails() noexcept { has_inherited_tails_ = true; }
  /// Notes that others write a block, so that its content is unknown.
  void note_import(BlockId block) noexcept;

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
  bool has_encoder(const BlockTables& tables, SequenceId sequence) const noexcept;
  std::uint64_t& without_encoder(SequenceId sequence) noexcept;
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
  LazyArray<std::uint64_t> without_encoder_;  // [max_sequences] id of a sequence that takes the
                                              // blocks of its encoder yet
  std::vector<SequenceId> encoders_;          // of the last plan
  bool has_inherited_tails_ = false;  // a sequence may continue in a block that another one wrote
};

}  // namespace kvarena
