#pragma once

/// @file
/// `TableRegions`: where in the entries of device tables each sequence's block table lies. All
/// sequences together could be far longer than what can be in use, so their tables share a pool: a
/// sequence has a region there, and gets a larger one when it outgrows it. Deterministic; host
/// only; one thread at a time; allocates at construction only.
///
/// Regions are handed out one behind another. At the end of the pool all are dropped and it begins
/// anew: whoever has none gets one when it comes up. Where a table goes to a new region, all of it
/// is sent again. Steps in flight are safe: what they read is overwritten by launches of later
/// steps only, which the stream's order keeps behind them.

#include "base/lazy_array.hpp"
#include "kernels/scatter_step/staged_step.h"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// A region for each sequence slot that has come up.
class TableRegions {
 public:
  /// Throws std::bad_alloc.
  explicit TableRegions(const kernels::StepShape& shape);

  /// Entries that a pool needs for tables of these sizes: enough for each sequence at its longest,
  /// or twice what the rows of one step of `max_changes` blocks can take, whichever is less.
  static std::int64_t entries_for(const kernels::StepShape& shape) noexcept;

  /// Granule of the pool at which the region of `slot` begins; the slot has one.
  std::int32_t first_granule(std::int32_t slot) const noexcept { return at(slot).first; }
  /// Whether `slot` has a region.
  bool has(std::int32_t slot) const noexcept { return at(slot).capacity > 0; }
  /// Whether it has one in which `blocks` entries fit.
  bool fits(std::int32_t slot, std::int32_t blocks) const noexcept {
    return has(slot) && at(slot).capacity >= blocks;
  }
  /// Gives `slot` a new region for `blocks` entries, at most the longest row's; what it held
  /// elsewhere is not there. Drops every other region first when the pool has come to its end.
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
  bool is_fixed_;         // every slot has room for the longest
  LazyArray<Region> regions_;
  std::int64_t next_ = 0;  // entry at which the next region begins
  std::uint64_t num_restarts_ = 0;
};

}  // namespace kvarena
