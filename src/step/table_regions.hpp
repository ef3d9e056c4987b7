#pragma once

/// @file
/// `TableRegions`: the place of each sequence's block table in the entries of device tables. All
/// sequences at their longest would need far more entries than can be in use, so their tables share
/// a pool. A sequence has a region in it, and gets a larger one when it outgrows the region.
/// Deterministic; host only; one thread at a time; allocates only at construction.
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

/// The regions of the sequence slots that have come up.
class TableRegions {
 public:
  /// Makes the regions. Throws std::bad_alloc.
  explicit TableRegions(const kernels::StepShape& shape);

  /// Returns the entries that a pool needs for tables of these sizes: enough for every sequence at
  /// its longest, or twice what the rows of one step of `max_changes` blocks can take, whichever is
  /// less.
  static std::int64_t entries_for(const kernels::StepShape& shape) noexcept;

  /// Returns the granule of the pool at which the region of `slot` begins. Requires has(slot).
  std::int32_t first_granule(std::int32_t slot) const noexcept { return at(slot).first; }
  /// Whether `slot` has a region.
  bool has(std::int32_t slot) const noexcept { return at(slot).capacity > 0; }
  /// Whether `slot` has a region into which `blocks` entries fit.
  bool fits(std::int32_t slot, std::int32_t blocks) const noexcept {
    return has(slot) && at(slot).capacity >= blocks;
  }
  /// Gives `slot` a new region for `blocks` entries, at most those of the longest row. The content
  /// of its old region is not moved. When the pool is full, all other regions are dropped first.
  void place(std::int32_t slot, std::int32_t blocks) noexcept;
  /// How often all regions were dropped.
  std::uint64_t num_restarts() const noexcept { return num_restarts_; }

 private:
  struct Region {
    std::int32_t first;     ///< granule
    std::int32_t capacity;  ///< entries; 0: none
  };
  const Region& at(std::int32_t slot) const noexcept {
    return regions_[static_cast<std::size_t>(slot)];
  }

  std::int64_t entries_;
  std::int64_t longest_;  // entries of the largest region
  bool is_fixed_;         // every slot has room for the longest table
  LazyArray<Region> regions_;
  std::int64_t next_ = 0;  // entry at which the next region begins
  std::uint64_t num_restarts_ = 0;
};

}  // namespace kvarena
