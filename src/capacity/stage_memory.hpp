#pragma once

/// @file
/// The memory that one stage of a pipeline takes of a GPU, and the sequences that fit into the
/// rest.

#include "capacity/planned_cache.hpp"
#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <set>
#include <vector>

namespace kvarena::capacity {

inline constexpr std::int64_t kMostBatch = std::int64_t{1} << 24;  ///< sequences of a plan

/// The memory of a rank of a stage.
struct StageMemory {
  std::vector<GroupMemory> groups;    ///< the data that its layers keep
  std::int64_t weights_bytes = 0;     ///< its weights
  std::int64_t activation_bytes = 0;  ///< peak of a step
  std::int64_t cache_budget_bytes =
      0;  ///< for pools and tables; negative when weights, activations and overhead do not fit
  std::int64_t step_tokens = 0;  ///< new tokens of a step
  FittedCache cache;             ///< cache for sequences up to the context

  /// Returns the budget of the pools alone.
  std::int64_t kv_budget_bytes() const noexcept { return cache_budget_bytes - cache.table_bytes; }
  /// Returns the bytes of all groups' pool_units.
  std::int64_t pool_bytes(std::int64_t sequences, std::int64_t length_tokens) const noexcept;
  /// Returns whether `sequences` sequences of that length fit beside the tables of `its`.
  bool holds_beside(const FittedCache& its, std::int64_t sequences,
                    std::int64_t length_tokens) const noexcept;
  /// Returns the same beside its own tables.
  bool holds(std::int64_t sequences, std::int64_t length_tokens) const noexcept {
    return holds_beside(cache, sequences, length_tokens);
  }
  /// Returns the most sequences of that length that fit, at most kMostBatch.
  std::int64_t sequences(std::int64_t length_tokens) const noexcept;
  /// Returns why `sequences` sequences of that length do not fit beside the tables of `its`:
  /// weights, kv_cache or num_blocks. Requires that they do not fit.
  PlanLimit limit_of(const FittedCache& its, std::int64_t sequences,
                     std::int64_t length_tokens) const noexcept;
};

/// Returns how a stage stores K and V.
KvMemoryOptions kv_options(const ModelSpec& model, const PlanOptions& options, std::int32_t stage);
/// Returns the bytes of the CUDA context and graphs.
std::int64_t overhead_of(const PlanOptions& options) noexcept;
/// Computes the memory of a stage for a context. Returns what group_memory returns.
Result<StageMemory> memory_of_stage(const ModelSpec& model, const PlanOptions& options,
                                    std::int64_t context_tokens, std::int32_t stage);
/// Returns whether `a` has less room than `b`: fewer sequences, or equally many and fewer bytes.
bool has_less_room(const StageMemory& a, const StageMemory& b,
                   std::int64_t context_tokens) noexcept;
/// The longest sequences, and their limit.
struct LongestContext {
  std::int64_t tokens = 0;                         ///< of each
  PlanLimit limited_by = PlanLimit::max_position;  ///< what a longer sequence lacks
  std::int64_t kv_budget_bytes = 0;                ///< for pools beside the tables of that length
  std::int64_t pool_bytes = 0;                     ///< that the sequences take of them
};
/// Returns the longest length, at most `longest`, at which `options.batch` sequences fit on
/// `stage`.
LongestContext longest_that_fits(const ModelSpec& model, const PlanOptions& options,
                                 std::int32_t stage, const StageMemory& memory,
                                 std::int64_t longest);

/// Returns stages that include the stage with the least room: the first, the last, and between them
/// one stage for each different share of the groups' layers and of the parts of parameters.
std::set<std::int32_t> stages_to_plan(const ModelSpec& model, const PlanOptions& options);
/// The most sequences, and their limit.
struct LargestBatch {
  std::int64_t sequences = 0;                       ///< that fit
  PlanLimit limited_by = PlanLimit::num_sequences;  ///< what one more sequence lacks
  std::int64_t beside_one =
      0;  ///< sequences whose K and V fit beside activations and tables of one sequence
  std::int64_t kv_budget_bytes = 0;  ///< for pools
  std::int64_t pool_bytes = 0;       ///< that the sequences take of them
  std::int64_t bytes_each = 0;       ///< peak_bytes of a sequence there
};
/// Returns the most sequences of that length that fit when tables and logits are made for as many
/// sequences. Ignores options.batch.
LargestBatch batch_that_fits(const ModelSpec& model, const PlanOptions& options,
                             std::int64_t length_tokens);
/// Returns MemoryPlan::fits of a plan for that context, without making the plan.
bool fits(const ModelSpec& model, const PlanOptions& options, std::int64_t context_tokens);
/// Returns the context of a plan, or the failure that plan returns.
Result<std::int64_t> checked_context(const ModelSpec& model, const PlanOptions& options);

/// Returns the longest length for which `fits` holds. Requires that it holds at `does`, fails at
/// `does_not`, and changes once between them.
template <class Fits>
std::int64_t longest_that(Fits fits, std::int64_t does, std::int64_t does_not) {
  while (does_not - does > 1) {
    const std::int64_t middle = does + (does_not - does) / 2;
    (fits(middle) ? does : does_not) = middle;
  }
  return does;
}

}  // namespace kvarena::capacity
