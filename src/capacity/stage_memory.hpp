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
  std::vector<PlanLine> lines;          ///< the arithmetic

  /// For pools alone.
  std::int64_t kv_budget_bytes() const noexcept { return cache_budget_bytes - cache.table_bytes; }
  /// Sequences of that length that fit, at the most blocks they hold on their way.
  std::int64_t sequences(std::int64_t length_tokens) const noexcept {
    return sequences_beside(cache, length_tokens);
  }
  /// The same beside the tables of a cache.
  std::int64_t sequences_beside(const FittedCache& its, std::int64_t length_tokens) const noexcept;
  /// Bytes of all groups' step_units at that length.
  std::int64_t step_bytes(std::int64_t length_tokens) const noexcept;
};

/// How a stage keeps K and V.
KvMemoryOptions kv_options(const ModelSpec& model, const PlanOptions& options, std::int32_t stage);
/// Context and graphs.
std::int64_t overhead_of(const PlanOptions& options) noexcept;
/// What of the memory may be used.
std::int64_t budget_of(const PlanOptions& options) noexcept;
/// A stage planned for a context. Returns what group_memory returns.
Result<StageMemory> memory_of_stage(const ModelSpec& model, const PlanOptions& options,
                                    std::int64_t context_tokens, std::int32_t stage);
/// Less room: fewer sequences, then fewer bytes.
bool has_less_room(const StageMemory& a, const StageMemory& b,
                   std::int64_t context_tokens) noexcept;
/// The longest length, at most `longest`, of which `options.batch` sequences fit.
std::int64_t longest_that_fits(const ModelSpec& model, const PlanOptions& options,
                               const StageMemory& memory, std::int64_t longest);

/// The stages of which one is the tightest: of those between the first and the last none has more
/// of anything than the second.
std::set<std::int32_t> stages_to_plan(const PlanOptions& options);
/// The most sequences of that length that fit when tables and logits are made for as many, whatever
/// batch is asked for.
std::int64_t batch_that_fits(const ModelSpec& model, const PlanOptions& options,
                             std::int64_t length_tokens);

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
