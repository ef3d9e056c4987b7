#include "cache/group_row_counts.hpp"

#include "step/group_rows.hpp"

#include <algorithm>
#include <bit>

namespace kvarena {

/// With batch invariance each step keeps the largest shape where the kernel of rows with many query
/// tokens depends on it.
cuda::AttentionShape step_shape(const cuda::AttentionShape& largest, std::int32_t rows) noexcept {
  cuda::AttentionShape shape = largest;
  if (largest.batch_invariant_tokens > 0 && largest.max_run_tokens > 0) return shape;
  const auto rounded = std::bit_ceil(static_cast<std::uint32_t>(std::max(rows, 1)));
  shape.max_rows =
      static_cast<std::int32_t>(std::min<std::int64_t>(largest.max_rows, std::int64_t{rounded}));
  return shape;
}

/// In a cross group a row reads the encoder's tokens, whose number is not known here.
GroupRowCounts count_group_rows(const TableGroup& table, const cuda::RowClasses& classes,
                                std::span<const AppendedRow> rows) noexcept {
  GroupRowCounts counts;
  const bool is_cross = table.kind == PagedKind::cross;
  for (const AppendedRow& row : rows) {
    for_each_row(table, row.length_tokens, row.num_new_tokens, [&](const GroupRow& its) {
      ++counts.num_rows;
      cuda::count_row(classes, its.num_new, counts.classes, is_cross ? 0 : its.length);
    });
  }
  return counts;
}

/// Sizes follow from the sum over the classes, which is the number of rows.
GroupRowCounts count_group_rows(const TableGroup& table, const cuda::RowClasses& classes,
                                const RecordedStep& shape) noexcept {
  const auto of_one = static_cast<std::int32_t>(most_rows_of_one(table, shape.tokens_per_row));
  GroupRowCounts counts{.num_rows = shape.num_rows * of_one, .classes = {}};
  const bool is_cross = table.kind == PagedKind::cross;
  const std::int32_t longest = is_cross ? 1 : shape.tokens_per_row;
  const std::int32_t shortest = is_cross || of_one > 1 ? 1 : longest;
  for (std::int32_t tokens = shortest; tokens <= longest; ++tokens) {
    cuda::count_row(classes, tokens, counts.classes);
  }
  std::int32_t left = counts.num_rows;
  std::int32_t classes_left = 0;
  std::int32_t* const all[] = {&counts.classes.decode, &counts.classes.columns,
                               &counts.classes.prompts};
  for (const std::int32_t* count : all) classes_left += *count > 0 ? 1 : 0;
  for (std::int32_t* count : all) {
    if (*count == 0) continue;
    *count = std::max(1, left / classes_left--);
    left -= *count;
  }
  cuda::RowCounts& rows = counts.classes;
  if (!is_cross && rows.decode > 0) {
    const bool is_chunk = table.kind == PagedKind::chunk;
    rows.decode_longest = is_chunk ? static_cast<std::int32_t>(std::min<std::int64_t>(
                                         shape.row_tokens, table.limit_tokens))
                                   : shape.row_tokens;
    rows.decode_length = std::int64_t{rows.decode} * rows.decode_longest;
  }
  return counts;
}

}  // namespace kvarena
