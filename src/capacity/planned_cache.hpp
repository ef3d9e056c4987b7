#pragma once

/// @file
/// The KvCache of a plan: its options, and the number of blocks that fit.

#include "capacity/formula.hpp"
#include "kvarena/capacity/memory_plan.hpp"

#include <cstdint>
#include <span>

namespace kvarena::capacity {

/// Returns the options of a cache for these groups, without its size. Returns unsupported as
/// cache_options does.
Result<KvCacheOptions> options_for(const ModelSpec& model, const PlanOptions& options,
                                   std::span<const GroupMemory> groups,
                                   std::int64_t context_tokens);

/// The most blocks of a cache that fits a budget, and the cache's memory beside its pool.
struct FittedCache {
  std::int64_t most_blocks = KvLayout::kMaxBlocks;  ///< most blocks of such a cache with any budget
  std::int64_t num_blocks = KvLayout::kMaxBlocks;   ///< without a planned cache: no limit
  std::int64_t table_bytes = 0;                     ///< tables and workspaces on the device
  std::int64_t workspace_bytes = 0;  ///< the part of table_bytes for workspaces of attention
};
/// Fits a cache into a budget when the options name a target and a KvCache can hold the groups.
/// Otherwise returns no limit.
FittedCache fit_planned_cache(const ModelSpec& model, const PlanOptions& options,
                              std::span<const GroupMemory> groups, std::int64_t context_tokens,
                              std::int64_t budget_bytes);
/// Returns the formula of the attention workspaces of such a cache, with the numbers of the launch
/// that needs `workspace_bytes`.
Formula workspace_formula(const KvCacheOptions& cache, const CacheTarget& target,
                          std::int64_t workspace_bytes);

}  // namespace kvarena::capacity
