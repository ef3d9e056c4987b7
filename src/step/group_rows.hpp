#pragma once

/// @file
/// The rows that attention kernels have for a group of layers. They are the rows of the batch where
/// the last token of a row sees the last tokens, or all. Elsewhere a sequence has several rows of
/// kernels, so that causal attention over each of them is what its layers see: one for each chunk
/// that new tokens are in, whose table begins with the chunk; in a cross group one for each new
/// token, which sees the encoder's tokens. Pure functions.

#include "kvarena/blocktable/table_groups.hpp"

#include <algorithm>
#include <cstdint>

namespace kvarena {

/// A row of the kernels.
struct GroupRow {
  std::int64_t first_block = 0;  ///< of the sequence: the first entry of the row's table
  std::int32_t length = 0;       ///< tokens from there to the last one that the row's tokens see
  std::int32_t num_new = 0;      ///< its query tokens
};

/// Calls visit(GroupRow) for each row of a sequence with `num_tokens` tokens in the group,
/// `num_new` new tokens in the step; at least once.
template <class Visit>
constexpr void for_each_row(const TableGroup& group, std::int32_t num_tokens, std::int32_t num_new,
                            Visit visit) {
  if (group.kind == PagedKind::cross) {
    for (std::int32_t i = 0; i < std::max(num_new, 1); ++i) {
      visit(GroupRow{0, num_tokens, std::min(num_new, 1)});
    }
    return;
  }
  if (group.kind != PagedKind::chunk || num_tokens == 0) {
    visit(GroupRow{0, num_tokens, num_new});
    return;
  }
  const std::int64_t chunk = group.limit_tokens;
  const std::int64_t old_tokens = num_tokens - num_new;
  const std::int64_t last = (num_tokens - 1) / chunk;
  for (std::int64_t i = std::min(old_tokens / chunk, last); i <= last; ++i) {
    const std::int64_t begin = i * chunk;
    const std::int64_t end = std::min<std::int64_t>(num_tokens, begin + chunk);
    visit(GroupRow{begin / group.block_size_tokens, static_cast<std::int32_t>(end - begin),
                   static_cast<std::int32_t>(end - std::max(begin, old_tokens))});
  }
}

/// Returns the most rows of a step of `rows` sequences with `tokens` new tokens together.
constexpr std::int64_t most_rows(const TableGroup& group, std::int64_t rows,
                                 std::int64_t tokens) noexcept {
  if (group.kind == PagedKind::cross) return rows + tokens;
  if (group.kind != PagedKind::chunk) return rows;
  return rows + std::min(tokens, rows + tokens / group.limit_tokens);
}

/// Returns the most rows of one sequence with `num_new` new tokens.
constexpr std::int64_t most_rows_of_one(const TableGroup& group, std::int64_t num_new) noexcept {
  if (group.kind == PagedKind::cross) return std::max<std::int64_t>(num_new, 1);
  if (group.kind != PagedKind::chunk || num_new < 1) return 1;
  return 1 + (num_new + group.limit_tokens - 2) / group.limit_tokens;
}

}  // namespace kvarena
