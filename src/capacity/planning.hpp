#pragma once

/// @file
/// The parts from which plan() is made: the weights and activations of a rank, the KvCache that
/// fits, the memory of a pipeline's stage with the sequences that fit into the rest, and the lines
/// that show the arithmetic. Functions without state.

#include "capacity/formula.hpp"

#include "kvarena/capacity/kv_memory.hpp"
#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_spec.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace kvarena::capacity {

/// Bytes with the lines of their arithmetic.
struct RankMemory {
  std::int64_t bytes = 0;
  std::vector<PlanLine> lines;
};

bool has_weights(const ModelSpec& model) noexcept;
/// Returns whether the weights are planned in their published formats.
bool has_published_weights(const ModelSpec& model, const PlanOptions& options) noexcept;
/// Returns the weights of a rank of `stage`; nothing when their size is unknown.
RankMemory weights_of_rank(const ModelSpec& model, const PlanOptions& options, std::int32_t stage);
/// Returns the most memory of a step of max_step_tokens tokens beside weights and KV, in 16-bit
/// numbers. It is the residual stream, its normalised copy, and the largest of the intermediates of
/// attention, the MLP and the logits, which never exist at the same time.
RankMemory activations_of_rank(const ModelSpec& model, const PlanOptions& options);

/// Returns the options of a cache for the groups of a stage, without its size. Returns unsupported
/// as cache_options does.
Result<PlannedCache> options_for(const ModelSpec& model, const PlanOptions& options,
                                 std::span<const GroupMemory> groups, std::int32_t stage,
                                 std::int64_t context_tokens);

/// The most blocks of a cache that fits a budget, and the cache's memory beside its pool. Groups
/// that share a pool have pages in place of blocks.
struct FittedCache {
  std::int64_t most_blocks = KvLayout::kMaxBlocks;  ///< most blocks of such a cache with any budget
  std::int64_t num_blocks = KvLayout::kMaxBlocks;   ///< without a planned cache: no limit
  std::int64_t table_bytes = 0;                     ///< tables and workspaces on the device
  std::int64_t workspace_bytes = 0;  ///< the part of table_bytes for workspaces of attention
};
/// Fits a cache into a budget when the options name a target and a KvCache can hold the groups.
/// Otherwise returns no limit.
FittedCache fit_planned_cache(const ModelSpec& model, const PlanOptions& options,
                              std::span<const GroupMemory> groups, std::int32_t stage,
                              std::int64_t context_tokens, std::int64_t budget_bytes);
/// Returns the formula of the attention workspaces of such a cache, with the numbers of the launch
/// that needs `workspace_bytes`.
Formula workspace_formula(const KvCacheOptions& cache, const CacheTarget& target,
                          std::int64_t workspace_bytes);

inline constexpr std::int64_t kMostBatch = std::int64_t{1} << 24;  ///< sequences of a plan

/// The memory of a rank of a stage.
struct StageMemory {
  std::vector<GroupMemory> groups;    ///< the data that its layers keep
  std::int64_t weights_bytes = 0;     ///< its weights
  std::int64_t activation_bytes = 0;  ///< peak of a step
  std::int64_t cache_budget_bytes =
      0;  ///< for pools and tables; negative when weights, activations and overhead do not fit
  std::int64_t step_tokens = 0;     ///< new tokens of a step
  std::optional<PageChoice> pages;  ///< of a pool for several groups
  FittedCache cache;                ///< cache for sequences up to the context

  std::int64_t kv_budget_bytes() const noexcept { return cache_budget_bytes - cache.table_bytes; }
  std::int64_t pool_bytes(std::int64_t sequences, std::int64_t length_tokens) const noexcept;
  /// Returns the pages of that pool, of groups that share one.
  std::int64_t num_pages(std::int64_t sequences, std::int64_t length_tokens) const noexcept;
  /// Returns the most pages that ids can name.
  std::int64_t most_pages() const noexcept;
  /// Returns the most bytes that a sequence holds while it grows to that length.
  std::int64_t sequence_bytes(std::int64_t length_tokens) const noexcept;
  /// Returns whether such a pool has at most `most_blocks` blocks or pages, and ids for all.
  bool has_ids(std::int64_t most_blocks, std::int64_t sequences,
               std::int64_t length_tokens) const noexcept;
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
  std::int64_t bytes_each = 0;       ///< at most, of a sequence there
};
/// Returns the most sequences of that length that fit when tables and logits are made for as many
/// sequences. Ignores options.batch.
LargestBatch batch_that_fits(const ModelSpec& model, const PlanOptions& options,
                             std::int64_t length_tokens);
/// Returns MemoryPlan::fits of a plan for that context, without making the plan.
bool fits(const ModelSpec& model, const PlanOptions& options, std::int64_t context_tokens);
inline constexpr std::int64_t kMostContextTokens = std::numeric_limits<std::int32_t>::max();
/// Returns the most tokens of a sequence of the model.
inline std::int64_t longest_context(const ModelSpec& model) noexcept {
  const std::int64_t longest = model.shape.max_position;
  return longest > 0 ? std::min(longest, kMostContextTokens) : kMostContextTokens;
}
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

/// The results from which a plan is made.
struct PlanSources {
  const StageMemory& memory;      ///< of the stage with the least room
  const LongestContext& longest;  ///< of all stages
  const LargestBatch& largest;    ///< of all stages
};

Formula budget_of(const PlanOptions& options);
/// Returns the sum of a plan's weights, `kv_bytes` of K and V, activations and overhead.
Formula total_of(const MemoryPlan& plan, std::int64_t kv_bytes);
/// Returns the lines of a plan whose other fields are set.
std::vector<PlanLine> lines_of(const ModelSpec& model, const PlanOptions& options,
                               const PlanSources& sources, const MemoryPlan& plan);

/// Returns the groups that have layers on the stage, with those layers. Windows that are kept whole
/// are full attention, and groups that keep alike are one.
std::vector<CacheGroup> kept_groups(const ModelSpec& model, const KvMemoryOptions& options);

}  // namespace kvarena::capacity
