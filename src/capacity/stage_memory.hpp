#pragma once

/// @file
/// What one stage of a pipeline takes of a GPU, and how many sequences fit into the rest.

#include "capacity/planned_cache.hpp"
#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <set>
#include <vector>

namespace kvarena::capacity {

inline constexpr std::int64_t kMostBatch = std::int64_t{1} << 24;  ///< sequences of a plan

/// A rank of a stage.
struct StageMemory {
  std::vector<GroupMemory> groups;      ///< what its layers keep
  std::int64_t weights_bytes = 0;       ///< its weights
  std::int64_t activation_bytes = 0;    ///< peak of a step
  std::int64_t cache_budget_bytes = 0;  ///< for pools and tables; negative: the rest does not fit
  std::int64_t step_tokens = 0;         ///< new tokens of a step
  FittedCache cache;                    ///< of sequences up to the context

  /// For pools alone.
  std::int64_t kv_budget_bytes() const noexcept { return cache_budget_bytes - cache.table_bytes; }
  /// Bytes of all groups' pool_units.
  std::int64_t pool_bytes(std::int64_t sequences, std::int64_t length_tokens) const noexcept;
  /// Whether so many sequences of that length fit beside the tables of `its`.
  bool holds_beside(const FittedCache& its, std::int64_t sequences,
                    std::int64_t length_tokens) const noexcept;
  /// The same beside its own tables.
  bool holds(std::int64_t sequences, std::int64_t length_tokens) const noexcept {
    return holds_beside(cache, sequences, length_tokens);
  }
  /// The most sequences of that length that fit, at most kMostBatch.
  std::int64_t sequences(std::int64_t length_tokens) const noexcept;
  /// What keeps so many sequences of that length, which do not fit, from fitting beside the tables
  /// of `its`: weights, kv_cache or num_blocks.
  PlanLimit limit_of(const FittedCache& its, std::int64_t sequences,
                     std::int64_t length_tokens) const noexcept;
};

/// How a stage keeps K and V.
KvMemoryOptions kv_options(const ModelSpec& model, const PlanOptions& options, std::int32_t stage);
/// Context and graphs.
std::int64_t overhead_of(const PlanOptions& options) noexcept;
/// A stage planned for a context. Returns what group_memory returns.
Result<StageMemory> memory_of_stage(const ModelSpec& model, const PlanOptions& options,
                                    std::int64_t context_tokens, std::int32_t stage);
/// Less room: fewer sequences, then fewer bytes.
bool has_less_room(const StageMemory& a, const StageMemory& b,
                   std::int64_t context_tokens) noexcept;
/// The longest sequences, and what limits them.
struct LongestContext {
  std::int64_t tokens = 0;                         ///< of each
  PlanLimit limited_by = PlanLimit::max_position;  ///< what a longer one lacks
  std::int64_t kv_budget_bytes = 0;                ///< for pools beside the tables of that length
  std::int64_t pool_bytes = 0;                     ///< that the sequences take of them
};
/// The longest length, at most `longest`, of which `options.batch` sequences fit on `stage`.
LongestContext longest_that_fits(const ModelSpec& model, const PlanOptions& options,
                                 std::int32_t stage, const StageMemory& memory,
                                 std::int64_t longest);

/// The stages of which one is the tightest: the first, the last, and of those between one for each
/// share of the groups' layers and the parts of parameters.
std::set<std::int32_t> stages_to_plan(const ModelSpec& model, const PlanOptions& options);
/// The most sequences, and what limits them.
struct LargestBatch {
  std::int64_t sequences = 0;                       ///< that fit
  PlanLimit limited_by = PlanLimit::num_sequences;  ///< what one more lacks
  std::int64_t beside_one = 0;       ///< whose K and V fit beside activations and tables of one
  std::int64_t kv_budget_bytes = 0;  ///< for pools
  std::int64_t pool_bytes = 0;       ///< that the sequences take of them
  std::int64_t bytes_each = 0;       ///< peak_bytes of a sequence there
};
/// The most sequences of that length that fit when tables and logits are made for as many, whatever
/// batch is asked for.
LargestBatch batch_that_fits(const ModelSpec& model, const PlanOptions& options,
                             std::int64_t length_tokens);
/// MemoryPlan::fits of a plan of that context, and nothing else of it.
bool fits(const ModelSpec& model, const PlanOptions& options, std::int64_t context_tokens);
/// The context that is planned for, or why there is no plan: what plan returns.
Result<std::int64_t> checked_context(const ModelSpec& model, const PlanOptions& options);

/// The longest length for which `fits` holds: it does for all up to `does`, not for `does_not`.
template <class Fits>
std::int64_t longest_that(Fits fits, std::int64_t does, std::int64_t does_not) {
  while (does_not - does > 1) {
    const std::int64_t middle = does + (does_not - does) / 2;
    (fits(middle) ? does : does_not) = middle;
  }
  return does;
}

}  // namespace kvarena::capacity
