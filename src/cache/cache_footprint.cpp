#include "kvarena/cache/cache_footprint.hpp"

#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "cache/cache_options.hpp"
#include "cache/cache_plan.hpp"
#include "kvarena/device/cuda_device.hpp"

#include <algorithm>
#include <limits>
#include <new>

namespace kvarena {
namespace {

/// Returns whether a cache of `num_blocks` blocks is allowed and within the budget.
bool fits(CachePlan& plan, std::int64_t num_blocks, std::int64_t budget_bytes) {
  const Result<PoolPlan> pool = plan_pool(plan.unit_bytes(), {.num_blocks = num_blocks}, 0);
  return pool && plan_blocks(plan, *pool) && footprint_of(plan).device_bytes() <= budget_bytes;
}

/// Returns why not even a cache of one block fits, or ok when it does.
Status check_one_block(CachePlan& plan, std::int64_t budget_bytes) {
  const Result<PoolPlan> pool = plan_pool(plan.unit_bytes(), {.num_blocks = 1}, 0);
  if (!pool) return pool.status();
  if (Status status = plan_blocks(plan, *pool); !status) return status;
  const std::int64_t needed_bytes = footprint_of(plan).device_bytes();
  if (needed_bytes <= budget_bytes) return {};
  return insufficient_vram(static_cast<std::uint64_t>(needed_bytes),
                           static_cast<std::uint64_t>(budget_bytes));
}

/// Returns the blocks of a pool that gets the whole budget: an upper bound for a cache.
std::int64_t most_blocks(std::int64_t unit_bytes, std::int64_t budget_bytes) {
  const Result<std::int64_t> largest_bytes = KvLayout::pool_bytes(unit_bytes, KvLayout::kMaxBlocks);
  if (largest_bytes && *largest_bytes <= budget_bytes) return KvLayout::kMaxBlocks;
  const Result<PoolPlan> pool = plan_pool(unit_bytes, {.budget_bytes = budget_bytes}, 0);
  return pool ? pool->num_blocks : 0;
}

}  // namespace

Result<CacheTarget> target_of(const Device& device) {
  CacheTarget target{.kind = device.kind()};
  if (target.kind == DeviceKind::host) return target;
  const auto* cuda = dynamic_cast<const CudaDevice*>(&device);
  if (cuda == nullptr) return unsupported(Resource::device);
  target.num_sms = cuda->info().num_sms;
  target.bounce_bytes = static_cast<std::int64_t>(cuda->bounce_bytes());
  return target;
}

Result<CacheFootprint> cache_footprint(const KvCacheOptions& options, const CacheTarget& target,
                                       std::int64_t free_bytes) try {
  const Result<CachePlan> plan = plan_cache(options, target, free_bytes);
  if (!plan) return plan.status();
  return footprint_of(*plan);
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Result<KvCacheOptions> fit_cache(const KvCacheOptions& options, const CacheTarget& target,
                                 std::int64_t budget_bytes) try {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  if (Status s = check_option(Option::budget_bytes, budget_bytes, 0, kMost); !s) return s;
  Result<CachePlan> plan = plan_shape(options, target);
  if (!plan) return plan.status();
  if (Status status = check_one_block(*plan, budget_bytes); !status) return status;
  // More blocks never take less memory, and a refused number of blocks stays refused for more.
  // `fitting` blocks fit, `beyond` do not.
  std::int64_t fitting = 1;
  std::int64_t beyond = most_blocks(plan->unit_bytes(), budget_bytes) + 1;
  while (beyond - fitting > 1) {
    const std::int64_t middle = fitting + (beyond - fitting) / 2;
    (fits(*plan, middle, budget_bytes) ? fitting : beyond) = middle;
  }
  if (Status s = check_option(Option::watermark_blocks, options.watermark_blocks, 0, fitting); !s) {
    return s;
  }
  KvCacheOptions fitted = options;
  fitted.size = {.num_blocks = fitting};
  return fitted;
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace kvarena
