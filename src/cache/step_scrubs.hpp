#pragma once

/// @file
/// `StepScrubs`: the scrubs of one step of a pool with groups on the host. They are copied when the
/// step begins, because they run later, beside the planning of other steps.

#include "base/lazy_array.hpp"
#include "cache/scrub_planner.hpp"
#include "kernels/params.h"
#include "kvarena/allocator/arena.hpp"
#include "step/step_ring.hpp"

#include <cstddef>
#include <span>
#include <vector>

namespace kvarena {

/// The lists of a step: of the pages, then of each part.
class StepScrubs {
 public:
  /// None: a cache without scrubs.
  StepScrubs() = default;
  /// Throws std::bad_alloc.
  StepScrubs(const Arena& arena, const StepLimits& limits);

  /// Whether the cache scrubs. Then the scrubs make its copies on write of K and V.
  bool are_on() const noexcept { return !lists_.empty(); }
  /// Copies the plans, as many as there are lists. Returns whether there is anything to do.
  bool capture(std::span<const ScrubPlan> plans) noexcept;
  /// Does them.
  void run() const;

 private:
  /// Copies on write, then the others.
  struct List {
    LazyArray<kernels::BlockScrub> scrubs;
    std::size_t count = 0;
  };
  std::vector<List> lists_;
  std::vector<std::vector<kernels::ScrubParams>> params_;  // of each list, without it
};

}  // namespace kvarena
