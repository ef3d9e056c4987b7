#pragma once

/// @file
/// What a cache with groups plans beyond a uniform one: its page and layouts, the carving of its
/// pool, its tables and its workspaces.

#include "cache/backend.hpp"
#include "kvarena/allocator/page_pool.hpp"
#include "kvarena/attention/attention.hpp"
#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/base/group_layout.hpp"
#include "kvarena/blocktable/table_groups.hpp"
#include "kvarena/device/device.hpp"
#include "step/group_tables_memory.hpp"

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
/// smallest blocks of all. Returns what GroupLayout::create and check_states return; unsupported
/// (order); or invalid_argument (window_tokens), (page_sequence_tokens), (num_q_heads).
Result<GroupPlan> plan_groups(KvCacheOptions& options, DeviceKind kind);

/// Returns what attention over a group sees: fills in window, chunk or sees_all.
void set_visible(AttentionArgs& args, const PagedGroup& group) noexcept;

/// Returns the tables of part `part`.
TableGroup table_group(const GroupLayout& layout, std::size_t part) noexcept;

/// Returns the number of the part's group among those with K and V.
std::int32_t attention_group(const GroupLayout& layout, std::size_t part) noexcept;

/// Plans the workspaces, all as large as the largest: on the host one a step for each group, on
/// CUDA one for each group with K and V, or none when no group needs one. Returns what validate,
/// attention_workspace_bytes or cuda::workspace_bytes returns for a group.
Result<WorkspacePlan> plan_group_workspaces(DeviceKind kind, const GroupLayout& layout,
                                            const BackendOptions& options) noexcept;
/// Returns the shape of a group's attention on CUDA: its rows are those of group_rows.hpp. `kv` is
/// any of its layers.
cuda::AttentionShape group_shape(const BackendOptions& options, const TableGroup& table,
                                 const KvLayerView& kv) noexcept;
/// Returns the longest sequence of a pool of `num_pages` pages when no maximum is given: what a
/// group that keeps all tokens has room for.
std::int64_t longest_tokens(const GroupPlan& groups, std::int64_t num_pages) noexcept;
/// Returns the options of a CUDA backend's block tables. Throws std::bad_alloc.
GroupTablesOptions group_tables_options(const GroupLayout& layout, const BackendOptions& options);

/// Checks that the ids of a pool of `num_pages` pages fit. Returns invalid_argument (num_blocks).
Status check_ids(const GroupPlan& groups, std::int64_t num_pages) noexcept;
/// Returns the most blocks of a page.
std::int64_t most_blocks_per_page(const GroupPlan& groups) noexcept;

}  // namespace kvarena
