#pragma once

/// @file
/// The arithmetic of a plan, line by line, with its numbers in. A pure function.

#include "capacity/stage_memory.hpp"

namespace kvarena::capacity {

/// What a plan was made from.
struct PlanSources {
  const StageMemory& memory;      ///< of the stage that decides
  const LongestContext& longest;  ///< of all stages
  const LargestBatch& largest;    ///< of all stages
};

/// Fills in `plan->lines`. Requires a plan that is complete but for them.
void add_lines(const ModelSpec& model, const PlanOptions& options, const PlanSources& sources,
               MemoryPlan* plan);

}  // namespace kvarena::capacity
