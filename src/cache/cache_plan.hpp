#pragma once

/// @file
/// `CachePlan`: what a cache will be, settled before a device is asked for anything.
/// KvCache::create makes its parts from it, and cache_footprint reads its sizes, so that they
/// cannot differ.

#include "cache/backend.hpp"
#include "kvarena/allocator/arena.hpp"
#include "kvarena/base/layout.hpp"
#include "kvarena/cache/cache_footprint.hpp"

#include <cstdint>

namespace kvarena {

/// A cache on paper.
struct CachePlan {
  CacheTarget target;
  KvCacheOptions options;  ///< defaults filled in, but for those that follow the blocks
  KvLayout layout;         ///< with the tile order of the target
  PoolPlan pool;
  BackendOptions backend;
};

/// All but what follows the number of blocks. Returns as cache_footprint.
Result<CachePlan> plan_shape(const KvCacheOptions& options, const CacheTarget& target);
/// The rest, for that many blocks; may be called again for others. Returns invalid_argument
/// (table_page, num_blocks, ...) past what tables take, (pool_bytes) past what a device gives in
/// one piece.
Status plan_blocks(CachePlan& plan, const PoolPlan& pool) noexcept;
/// Both, for the blocks of `options.size` with so much free memory. Returns as cache_footprint.
Result<CachePlan> plan_cache(const KvCacheOptions& options, const CacheTarget& target,
                             std::int64_t free_bytes);

/// The options of its parts, of a complete plan.
BlockManagerOptions manager_options(const CachePlan& plan) noexcept;
BlockTablesOptions block_tables_options(const CachePlan& plan) noexcept;

/// What the cache of a complete plan allocates.
CacheFootprint footprint_of(const CachePlan& plan) noexcept;

}  // namespace kvarena
