#include "kvarena/allocator/arena.hpp"

#include "base/range_checks.hpp"

#include <algorithm>
#include <limits>

namespace kvarena {
namespace {

constexpr std::int64_t kUnsetReserve = -1;
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// Checks that exactly one of the sizes is set, and that it is in its range.
Status check_size(const PoolSize& size) noexcept {
  const bool has_blocks = size.num_blocks != 0;
  const bool has_budget = size.budget_bytes != 0;
  const bool has_reserve = size.all_free_but_bytes != kUnsetReserve;
  const int num_set = int{has_blocks} + int{has_budget} + int{has_reserve};
  if (num_set != 1) return invalid_option(Option::size, num_set, 1, 1);
  if (has_blocks) {
    return check_option(Option::num_blocks, size.num_blocks, 1, KvLayout::kMaxBlocks);
  }
  if (has_budget) return check_option(Option::budget_bytes, size.budget_bytes, 1, kMost);
  return check_option(Option::all_free_but_bytes, size.all_free_but_bytes, 0, kMost);
}

}  // namespace

Result<PoolPlan> plan_pool(const KvLayout& layout, const PoolSize& size, std::int64_t free_bytes) {
  return plan_pool(layout.block_bytes(), size, free_bytes);
}

/// Without a number of blocks, the budget is given or follows from the free memory.
Result<PoolPlan> plan_pool(std::int64_t block_bytes, const PoolSize& size,
                           std::int64_t free_bytes) {
  if (Status status = check_size(size); !status) return status;
  PoolPlan plan;
  std::int64_t budget_bytes = 0;
  if (size.num_blocks != 0) {
    plan.num_blocks = size.num_blocks;
  } else {
    const std::int64_t there = std::max<std::int64_t>(0, free_bytes);
    budget_bytes = size.budget_bytes != 0
                       ? size.budget_bytes
                       : std::max<std::int64_t>(0, there - size.all_free_but_bytes);
    plan.num_blocks = budget_bytes / block_bytes;
    if (plan.num_blocks == 0) {
      return insufficient_vram(static_cast<std::uint64_t>(block_bytes),
                               static_cast<std::uint64_t>(budget_bytes));
    }
  }
  const Result<std::int64_t> bytes = KvLayout::pool_bytes(block_bytes, plan.num_blocks);
  if (!bytes) return bytes.status();
  plan.pool_bytes = *bytes;
  plan.slack_bytes = budget_bytes == 0 ? 0 : budget_bytes - plan.pool_bytes;
  return plan;
}

}  // namespace kvarena
