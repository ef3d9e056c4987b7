#include "replay/pool_units.hpp"

#include "cache/group_plan.hpp"

#include <algorithm>
#include <utility>

namespace kvarena::replay {
namespace {

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

bool slides(const TableGroup& group) noexcept {
  return group.kind == PagedKind::window || group.kind == PagedKind::chunk;
}

}  // namespace

Result<PoolUnits> PoolUnits::create(const ReplayOptions& options) {
  PoolUnits units;
  units.block_size_ = options.attention.shape.block_size_tokens;
  if (options.groups.list.empty()) return units;
  KvCacheOptions cache;
  cache.groups = options.groups.list;
  cache.page_sequence_tokens = options.groups.page_sequence_tokens;
  cache.checkpoint_every_tokens = options.groups.checkpoint_every_tokens;
  cache.num_q_heads = options.attention.num_q_heads;
  const bool on_gpu =
      options.attention.device != nullptr && options.attention.device->kind() == DeviceKind::cuda;
  auto plan = plan_groups(cache, on_gpu ? DeviceKind::cuda : DeviceKind::host);
  if (!plan) return plan.status();
  units.groups_ = PoolGroups{.layout = std::move(plan->layout),
                             .blocks = std::move(plan->blocks),
                             .tables = std::move(plan->tables)};
  return units;
}

// As BlockTables counts a promise: a window or a chunk holds a block more in a step; a state is
// there twice in a step that can be undone.
std::int64_t PoolUnits::pages_of_group(std::size_t group, std::int64_t tokens) const noexcept {
  const TableGroup& table = groups_->tables[group];
  const std::int64_t in_page = groups_->blocks[group].blocks_per_page;
  if (table.kind == PagedKind::state) {
    const std::int64_t kept = table.rollback_tokens + 1;
    const std::int64_t states = table.keeps_for_undo ? 2 * kept : kept + 1;
    return ceil_div(states * table.num_parts, in_page);
  }
  const std::int64_t all = ceil_div(ceil_div(tokens, table.block_size_tokens), in_page);
  if (!slides(table)) return all;
  const std::int64_t most =
      pages_of(table.kind, peak_blocks(table.retention(), tokens) + 1, in_page);
  return std::min(all, most);
}

std::int64_t PoolUnits::of_length(std::int64_t tokens) const noexcept {
  if (tokens <= 0) return 0;
  if (!groups_) return ceil_div(tokens, block_size_);
  std::int64_t pages = 0;
  for (std::size_t g = 0; g < groups_->tables.size(); ++g) pages += pages_of_group(g, tokens);
  return pages;
}

std::int64_t PoolUnits::of_step(std::int64_t step_tokens) const noexcept {
  if (!groups_) return 0;
  std::int64_t pages = 0;
  for (std::size_t g = 0; g < groups_->tables.size(); ++g) {
    const TableGroup& table = groups_->tables[g];
    if (!slides(table)) continue;
    pages += ceil_div(ceil_div(step_tokens, table.block_size_tokens),
                      groups_->blocks[g].blocks_per_page);
  }
  return pages;
}

std::int64_t PoolUnits::of_fork() const noexcept {
  return groups_ ? std::ssize(groups_->tables) : 0;
}

}  // namespace kvarena::replay
