#pragma once

/// @file
/// The arithmetic of a plan, line by line, with its numbers in. Pure functions.

#include "capacity/formula.hpp"
#include "capacity/stage_memory.hpp"

namespace kvarena::capacity {

/// What a plan was made from.
struct PlanSources {
  const StageMemory& memory;      ///< of the stage that decides
  const LongestContext& longest;  ///< of all stages
  const LargestBatch& largest;    ///< of all stages
};

/// What of the memory may be used.
Formula budget_of(const PlanOptions& options);
/// Weights, K and V of so many bytes, activations and overhead of a plan.
Formula total_of(const MemoryPlan& plan, std::int64_t kv_bytes);
/// The lines of a plan that is complete but for them.
std::vector<PlanLine> lines_of(const ModelSpec& model, const PlanOptions& options,
                               const PlanSources& sources, const MemoryPlan& plan);

}  // namespace kvarena::capacity
