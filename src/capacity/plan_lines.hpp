#pragma once

/// @file
/// The arithmetic of a plan with its numbers, line by line. Pure functions.

#include "capacity/formula.hpp"
#include "capacity/stage_memory.hpp"

namespace kvarena::capacity {

/// The results from which a plan is made.
struct PlanSources {
  const StageMemory& memory;      ///< of the stage with the least room
  const LongestContext& longest;  ///< of all stages
  const LargestBatch& largest;    ///< of all stages
};

/// Returns the memory that may be used.
Formula budget_of(const PlanOptions& options);
/// Returns the sum of a plan's weights, `kv_bytes` of K and V, activations and overhead.
Formula total_of(const MemoryPlan& plan, std::int64_t kv_bytes);
/// Returns the lines of a plan whose other fields are set.
std::vector<PlanLine> lines_of(const ModelSpec& model, const PlanOptions& options,
                               const PlanSources& sources, const MemoryPlan& plan);

}  // namespace kvarena::capacity
