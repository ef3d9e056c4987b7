#pragma once

/// @file
/// The KvCache that a plan is for: what it can hold, and how many of its blocks fit.

#include "capacity/formula.hpp"
#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <span>

namespace kvarena::capacity {

/// Options of a cache of these groups, without its size. Returns unsupported as cache_options does.
Result<KvCacheOptions> options_for(const ModelSpec& model, const PlanOptions& options,
                                   std::span<const GroupMemory> groups,
                                   std::int64_t context_tokens);

/// The most blocks whose cache fits a budget, and what that cache takes beside its pool.
struct FittedCache {
  std::int64_t most_blocks = KvLayout::kMaxBlocks;  ///< of any such cache, however large the budget
  std::int64_t num_blocks = KvLayout::kMaxBlocks;   ///< no limit where no cache is planned for
  std::int64_t table_bytes = 0;                     ///< tables and workspaces on the device
  std::int64_t workspace_bytes = 0;                 ///< of them workspaces of attention
};
/// Fits a cache where options name a target and a KvCache can hold the groups; no limit otherwise.
FittedCache fit_planned_cache(const ModelSpec& model, const PlanOptions& options,
                              std::span<const GroupMemory> groups, std::int64_t context_tokens,
                              std::int64_t budget_bytes);
/// How the attention workspaces of such a cache come about, with the numbers of the launch that
/// needs so many bytes of them.
Formula workspace_formula(const KvCacheOptions& cache, const CacheTarget& target,
                          std::int64_t workspace_bytes);

}  // namespace kvarena::capacity
