#pragma once

/// @file
/// `TableRegions`: the place of each sequence's block table in the entries of device tables. All
/// sequences at their longest would need far more entries than can be in use, so their tables share
/// a pool. A sequence has a region in it, and gets a larger one when it outgrows the region.
/// Deterministic; host only; one thread at a time; allocates only at construction.
///
/// Tables whose blocks leave at the front have entries for the blocks behind it alone: such a
/// region covers some entries from the front on, and moves along with them. The table still counts
/// from its first block, so it begins in front of its region, where other tables lie, or in the
/// lead of the pool, where none does.
///
/// Regions are handed out one behind another. At the end of the pool all regions are dropped, and
/// handing out begins again: a sequence without a region gets one when it comes up. A table that
/// gets a new region is sent again as a whole. Steps in flight are safe: only launches of later
/// steps overwrite what they read, and the order of the stream puts those behind them.

#include "base/lazy_array.hpp"
#include "kernels/scatter_step/staged_step.h"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// Whether blocks leave the tables at the front.
enum class TableFront : std::uint8_t { stays, moves };

/// The regions of the sequence slots that have come up.
class TableRegions {
 public:
  /// Makes the regions. Throws std::bad_alloc.
  explicit TableRegions(const kernels::StepShape& shape, TableFront front = TableFront::stays);

  /// Returns the entries that a pool needs for tables of these sizes: enough for every sequence at
  /// its longest, or twice what the rows of one step of `max_changes` kept blocks can take, behind
  /// the lead, whichever is less.
  static std::int64_t entries_for(const kernels::StepShape& shape,
                                  TableFront front = TableFront::stays) noexcept;

  /// Returns the granule of the pool at which the table of `slot` begins. Requires has(slot).
  std::int32_t first_granule(std::int32_t slot) const noexcept { return at(slot).origin; }
  /// Whether `slot` has a region.
  bool has(std::int32_t slot) const noexcept { return at(slot).end > 0; }
  /// Whether `slot` has a region for the entries first .. blocks - 1 of its table.
  bool fits(std::int32_t slot, std::int32_t blocks, std::int32_t first = 0) const noexcept {
    return has(slot) && at(slot).begin <= first && blocks <= at(slot).end;
  }
  /// Gives `slot` a new region for the entries first .. blocks - 1 of its table; `blocks` is at
  /// most those of the longest row, `first` is 0 where the front stays. The content of its old
  /// region is not moved. When the pool is full, all other regions are dropped first.
  void place(std::int32_t slot, std::int32_t blocks, std::int32_t first = 0) noexcept;
  /// The number of times that all regions were dropped.
  std::uint64_t num_restarts() const noexcept { return num_restarts_; }

 private:
  struct Region {
    std::int32_t origin;  ///< granule of the table's first entry
    std::int32_t begin;   ///< the region has the entries begin .. end - 1 of the table
    std::int32_t end;     ///< 0: no region
  };
  const Region& at(std::int32_t slot) const noexcept {
    return regions_[static_cast<std::size_t>(slot)];
  }

  std::int64_t entries_;
  std::int64_t longest_;  // entries of the largest region
  bool is_fixed_;         // every slot has room for the longest table
  TableFront front_;
  std::int64_t lead_;  // entries in front of all regions
  LazyArray<Region> regions_;
  std::int64_t next_;  // entry at which the next region begins
  std::uint64_t num_restarts_ = 0;
};

}  // namespace kvarena
