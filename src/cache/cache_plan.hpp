#pragma once

/// @file
/// `CachePlan`: all sizes and options of a cache, computed before anything is allocated.
/// KvCache::create makes its parts from the plan, and cache_footprint reads its sizes from it, so
/// the two cannot differ.

#include "cache/backend.hpp"
#include "cache/group_plan.hpp"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/cache/cache_footprint.hpp"

#include <cstdint>
#include <optional>

namespace kvarena {

/// The plan of a cache.
struct CachePlan {
  CacheTarget target;
  KvCacheOptions options;  ///< with defaults, except those that follow the number of blocks
  KvLayout layout;  ///< with the tile order of the target; with groups that of the first part
  std::optional<GroupPlan> groups;  ///< none: all layers are alike
  PoolPlan pool;
  BackendOptions backend;

  /// The bytes of a block, or with groups of a page.
  std::int64_t unit_bytes() const noexcept {
    return groups ? groups->layout.page_bytes() : layout.block_bytes();
  }
};

/// Plans everything that does not depend on the number of blocks. Returns the errors of
/// cache_footprint.
Result<CachePlan> plan_shape(const KvCacheOptions& options, const CacheTarget& target);
/// Plans the rest for the blocks of `pool`. It may be called again for another number. Returns
/// invalid_argument (table_page, num_blocks, ...) past what tables take, or (pool_bytes) past what
/// a device gives in one allocation.
Status plan_blocks(CachePlan& plan, const PoolPlan& pool) noexcept;
/// Does both, for the blocks of `options.size` and this much free memory. Returns the errors of
/// cache_footprint.
Result<CachePlan> plan_cache(const KvCacheOptions& options, const CacheTarget& target,
                             std::int64_t free_bytes);

/// Return the options of the parts, from a complete plan.
BlockManagerOptions manager_options(const CachePlan& plan) noexcept;
BlockTablesOptions block_tables_options(const CachePlan& plan) noexcept;

/// Returns what the cache of a complete plan allocates.
CacheFootprint footprint_of(const CachePlan& plan) noexcept;

}  // namespace kvarena
