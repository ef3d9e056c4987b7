#pragma once

/// @file
/// The rows of a group's kernels in a step on CUDA, by the kernels that serve them, and the shape
/// that these depend on. Pure functions.

#include "kvarena/attention/cuda_attention.hpp"
#include "kvarena/blocktable/sequences.hpp"
#include "kvarena/blocktable/table_groups.hpp"
#include "kvarena/cache/kv_cache_step.hpp"

#include <algorithm>
#include <cstdint>
#include <span>

namespace kvarena {

/// Returns the shape of the schedules of a step with `rows` rows that are no prompts. It is rounded
/// up, so that it seldom changes: max_rows is a power of two, or that of `largest`. The classes of
/// the step's rows are those of this shape: fewer rows may have other kernels.
cuda::AttentionShape step_shape(const cuda::AttentionShape& largest, std::int32_t rows) noexcept;

/// Returns `classes` with one class for all rows that are no prompts, `columns`. Which rows are
/// prompts does not depend on the rows of a step.
constexpr cuda::RowClasses without_prompts(const cuda::RowClasses& classes) noexcept {
  return {.column_tokens = std::max(classes.decode_tokens, classes.column_tokens)};
}

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
