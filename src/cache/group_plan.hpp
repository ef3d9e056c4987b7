#pragma once

/// @file
/// What a cache with groups plans beyond a uniform one: its page and layouts, the carving of its
/// pool, its tables and its workspaces.

#include "cache/backend.hpp"
#include "kvarena/allocator/page_pool.hpp"
#include "kvarena/attention/attention.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/blocktable/table_groups.hpp"
#include "kvarena/device/device.hpp"

#include <cstdint>
#include <vector>

namespace kvarena {

/// The groups of a planned cache.
struct GroupPlan {
  GroupLayout layout;
  std::vector<BlockGroup> blocks;  ///< by part
  std::vector<TableGroup> tables;  ///< by part
};

/// Plans the groups of `options`, and sets options.layout to the shape of the first, with the
/// smallest blocks of all. Returns what GroupLayout::create returns; unsupported (groups) on a
/// device of kind cuda, (order), (scrub); or invalid_argument (window_tokens).
Result<GroupPlan> plan_groups(KvCacheOptions& options, DeviceKind kind);

/// Returns what attention over a group sees: fills in window, chunk or sees_all.
void set_visible(AttentionArgs& args, const PagedGroup& group) noexcept;

/// Plans the host's workspaces: one a step for each group, all as large as the largest. Returns
/// what validate and attention_workspace_bytes return for a group.
Result<WorkspacePlan> plan_group_workspaces(const GroupLayout& layout,
                                            const BackendOptions& options) noexcept;

/// Checks that the ids of a pool of `num_pages` pages fit. Returns invalid_argument (num_blocks).
Status check_ids(const GroupPlan& groups, std::int64_t num_pages) noexcept;
/// Returns the most blocks of a page.
std::int64_t most_blocks_per_page(const GroupPlan& groups) noexcept;

}  // namespace kvarena
