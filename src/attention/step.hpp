#pragma once

/// @file
/// The order of a step's work, for the schedule that cuts it and the workers that do it. The work
/// goes over rows, in each row over tiles of query tokens, for each tile over all kv heads, and for
/// each head over the tokens that the tile sees. A *segment* is (row, tile, head) with all its
/// tokens. Pure functions of the batch's lengths.

#include "attention/cpu/tile_ops.hpp"
#include "kvarena/base/views.hpp"

#include <algorithm>
#include <cstdint>

namespace kvarena::attention {

/// Tokens [begin, end).
struct TokenSpan {
  std::int64_t begin = 0;  ///< first
  std::int64_t end = 0;    ///< one past the last
  /// Number of tokens.
  std::int64_t size() const noexcept { return end - begin; }
};

/// A place in the order of work.
struct Cursor {
  std::int32_t row = 0;    ///< row of the batch
  std::int32_t head = 0;   ///< kv head
  std::int64_t tile = 0;   ///< tile of query tokens in the row
  std::int64_t token = 0;  ///< token of the sequence
};

/// Whether both places are in the same segment.
inline bool same_segment(const Cursor& a, const Cursor& b) noexcept {
  return a.row == b.row && a.tile == b.tile && a.head == b.head;
}

/// The work of a batch.
struct Step {
  const BatchView* batch;         ///< lengths
  const std::int64_t* q_offsets;  ///< [num_rows + 1] or null
  std::int32_t window_tokens;     ///< 0: none
  std::int32_t tile_tokens;       ///< query tokens in a tile
  std::int32_t num_kv_heads;      ///< heads
  bool has_trees = false;         ///< query tokens may see later ones of their row
  std::int64_t chunk_tokens = 0;  ///< 0: none
  bool sees_all = false;          ///< every query token sees all tokens of its row

  /// The first query token of `row`.
  std::int64_t q_begin(std::int32_t row) const noexcept {
    return q_offsets != nullptr ? q_offsets[row] : row;
  }
  /// The number of query tokens of `row`.
  std::int64_t q_count(std::int32_t row) const noexcept {
    return q_offsets != nullptr ? q_offsets[row + 1] - q_offsets[row] : 1;
  }
  /// The number of tiles of `row`.
  std::int64_t num_tiles(std::int32_t row) const noexcept {
    return (q_count(row) + tile_tokens - 1) / tile_tokens;
  }
  /// The number of query tokens of one tile.
  std::int32_t tile_count(std::int32_t row, std::int64_t tile) const noexcept {
    const std::int64_t left = q_count(row) - tile * tile_tokens;
    return static_cast<std::int32_t>(std::min<std::int64_t>(left, tile_tokens));
  }
  /// The tokens that query token `i` of `row` sees.
  TokenSpan visible(std::int32_t row, std::int64_t i) const noexcept {
    const std::int64_t length = batch->seq_lens[row];
    if (sees_all) return {0, length};
    const std::int64_t end = length == 0 ? 0 : length - q_count(row) + i + 1;
    if (chunk_tokens > 0) return {end == 0 ? 0 : (end - 1) / chunk_tokens * chunk_tokens, end};
    return {window_tokens > 0 ? std::max<std::int64_t>(0, end - window_tokens) : 0, end};
  }
  /// The tokens that at least one query token of a tile sees. With trees, tokens that one may see.
  TokenSpan span(std::int32_t row, std::int64_t tile) const noexcept {
    if (has_trees) {
      const std::int64_t end = std::max(0, batch->seq_lens[row]);
      const std::int64_t first_end = std::max<std::int64_t>(0, end - q_count(row) + 1);
      return {window_tokens > 0 ? std::max<std::int64_t>(0, first_end - window_tokens) : 0, end};
    }
    const std::int64_t first = tile * tile_tokens;
    const std::int64_t last = first + tile_count(row, tile) - 1;
    return {visible(row, first).begin, visible(row, last).end};
  }
  /// Returns the begin of the first segment of `row`, or of the next row that has query tokens.
  /// Past the end, row is num_rows.
  Cursor first_segment(std::int32_t row) const noexcept {
    while (row < batch->num_rows && q_count(row) == 0) ++row;
    if (row == batch->num_rows) return {row, 0, 0, 0};
    return {row, 0, 0, span(row, 0).begin};
  }
  /// Returns the begin of the segment after that of `at`.
  Cursor next_segment(const Cursor& at) const noexcept {
    if (at.head + 1 < num_kv_heads) {
      return {at.row, at.head + 1, at.tile, span(at.row, at.tile).begin};
    }
    if (at.tile + 1 < num_tiles(at.row)) {
      return {at.row, 0, at.tile + 1, span(at.row, at.tile + 1).begin};
    }
    return first_segment(at.row + 1);
  }
};

}  // namespace kvarena::attention
