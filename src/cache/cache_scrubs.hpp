#pragma once

/// @file
/// `CacheScrubs`: the scrubs of a cache's steps: those of its pool, or with groups of its pages and
/// of each part. A page that goes to another group is cleared as a whole, also for states. Within
/// its group a state is not cleared again, because a step writes all of it. One thread at a time.
/// No allocation after construction.

#include "base/lazy_array.hpp"
#include "cache/group_plan.hpp"
#include "cache/page_writers.hpp"
#include "cache/scrub_planner.hpp"
#include "kvarena/blocktable/block_tables.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvarena {

/// The planners of one cache.
class CacheScrubs {
 public:
  /// A pool without groups. `mode` is not never. Throws std::bad_alloc, as the other one.
  CacheScrubs(Scrub mode, std::int64_t num_blocks, std::int32_t block_size_tokens,
              const StepLimits& limits);
  /// A pool with groups, whose `pages` outlive the object.
  CacheScrubs(Scrub mode, const GroupPlan& groups, const PagePool& pages,
              std::int32_t max_sequences, const StepLimits& limits);
  CacheScrubs(const CacheScrubs&) = delete;  // the planners point to its pages
  CacheScrubs& operator=(const CacheScrubs&) = delete;
  /// Returns the host memory of either: an upper bound.
  static std::int64_t host_bytes(std::int64_t num_blocks, std::int32_t block_size_tokens,
                                 const StepLimits& limits) noexcept;
  static std::int64_t host_bytes(const GroupPlan& groups, std::int64_t num_pages,
                                 std::int32_t max_sequences, const StepLimits& limits) noexcept;
  /// Returns the most entries of a step in one part of the groups.
  static std::int64_t max_entries(const TableGroup& group, const StepLimits& limits) noexcept;

  /// Plans the scrubs for the last append of `tables`, as ScrubPlanner::plan: one plan for the
  /// pool, or with groups one for the pages, which comes first, and one for each part.
  std::span<const ScrubPlan> plan(const BlockManager& manager, const BlockTables& tables,
                                  std::span<const AppendDemand> demands,
                                  const AppendResult& appended) noexcept;
  /// Says that the append was taken back whose plans were not carried out, or only in part.
  void forget() noexcept;
  /// Says that the append was taken back whose plans were carried out.
  void note_abort() noexcept;
  /// Says that the device may have skipped plans: work of a step has failed. O(pages + blocks).
  void distrust() noexcept;
  /// Notes that a fork may have tokens of another owner.
  void note_fork(const BlockTables& tables, SequenceId parent, SequenceId child) noexcept;
  /// Notes that a sequence may continue in a block that another one wrote.
  void note_foreign_tails() noexcept;
  /// Notes that others write the blocks of a sequence. O(blocks).
  void note_import(const BlockManager& manager, const BlockTables& tables,
                   SequenceId sequence) noexcept;

 private:
  std::span<const BlockCopy> copies_of(std::size_t part, const AppendResult& appended) noexcept;
  void note_states(const AppendResult& appended) noexcept;

  std::vector<TableGroup> groups_;      // by table: parts, then groups of states; empty: none
  std::vector<std::int64_t> bytes_;     // by table: of a block
  std::optional<PageWriters> pages_;    // with groups
  std::vector<ScrubPlanner> planners_;  // by part
  std::vector<ScrubPlan> plans_;        // with groups: of the pages, then by part
  LazyArray<BlockCopy> copies_;         // [max_rows] of a part
};

}  // namespace kvarena
