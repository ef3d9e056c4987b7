#pragma once

/// @file
/// The rows of a group's kernels in a step on CUDA, by the kernels that serve them. Pure functions.

#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/blocktable/sequences.hpp"
#include "kvarena/blocktable/table_groups.hpp"
#include "kvarena/cache/kv_cache_step.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// Rows of a group (group_rows.hpp).
struct GroupRowCounts {
  std::int32_t num_rows = 0;  ///< with those that have no query tokens
  cuda::RowCounts classes;
};

/// Counts the rows of a step's batch.
GroupRowCounts count_group_rows(const TableGroup& table, const cuda::RowClasses& classes,
                                std::span<const AppendedRow> rows) noexcept;
/// Counts the rows that a recorded step has at most. A chunk may end inside the tokens of a row,
/// which is two rows of fewer tokens then: each class that may get rows has some.
GroupRowCounts count_group_rows(const TableGroup& table, const cuda::RowClasses& classes,
                                const RecordedStep& shape) noexcept;

}  // namespace kvarena
