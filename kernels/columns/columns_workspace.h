#pragma once

/// @file
/// The content of a workspace of the columns kernel. The schedule and the kernel share this header.

#include "kernels/columns/columns_limits.h"
#include "kernels/columns/columns_shape.h"
#include "kvarena/base/status.hpp"

#include <algorithm>
#include <cstdint>

namespace kvarena::kernels {

/// Most rows of a launch, with the rows that share prefixes counted twice: the schedule keeps three
/// numbers for each in shared memory.
inline constexpr std::int32_t kMaxColumnsRows = 1 << 14;
/// Most thread blocks of a launch.
inline constexpr std::int32_t kMaxColumnsBlocks = 512;
/// Tokens of a fixed part, rounded down to whole slabs.
inline constexpr std::int32_t kFixedPartTokens = 2048;

/// What a thread block does at a time: slabs of one row, KV head and column group. A column group
/// is as many neighbouring columns as a thread block has; column c is query token c / group with
/// query head c % group. All slabs of a (row, KV head, column group) are an item; an item that is
/// cut has several parts. The shared tokens of a prefix tile (shared_prefixes.h) are an item too;
/// its columns are those of all members, and they see all of its tokens. 64 bytes, loaded as four
/// vectors.
struct alignas(16) ColumnsSegment {
  std::int32_t table_row;     ///< of the block tables
  std::int32_t head;          ///< KV head
  std::int32_t q_begin;       ///< first query token in q and out; of a tile: in its list of tokens
  std::int32_t q_len;         ///< query tokens; of a tile: 0
  std::int32_t seq_len;       ///< tokens of the row, with the query tokens; of a tile: shared ones
  std::int32_t columns;       ///< of the row or tile
  std::int32_t column_group;  ///< index of the group
  std::int32_t first_token;   ///< of the first slab, a multiple of 16
  std::int32_t slabs;         ///< 0: the thread block has nothing to do
  std::int32_t first_seen;    ///< first token that a query token sees, because of the window
  std::int32_t partial;   ///< first row of the partial result of this part; -1: the item has one
                          ///< part, and its columns are written to out
  std::int32_t item;      ///< with arrivals: index of the ColumnsItem and its counter
  std::int32_t arrivals;  ///< that the counter waits for; 0: the item has one part, or a kernel
                          ///< that follows combines it
  std::int32_t next;      ///< next segment of this thread block; -1: none
  std::int32_t unused[2];
};
static_assert(sizeof(ColumnsSegment) == 64);

/// What to do when all parts of an item are complete. The columns of a row are combined from the
/// parts of its prefix, then its own. Part i begins at row i * columns of a thread block after the
/// first one.
struct alignas(16) ColumnsItem {
  std::int32_t q_begin;       ///< first query token of the row
  std::int32_t head;          ///< KV head
  std::int32_t first_column;  ///< of the row
  std::int32_t columns;       ///< from there on
  std::int32_t own_row;       ///< first row of the item's own partial results
  std::int32_t own_parts;
  std::int32_t prefix_row;  ///< first row of the columns' partial results of the prefix
  std::int32_t prefix_parts;
};
static_assert(sizeof(ColumnsItem) == 32);

/// The offsets of the arrays of a workspace, in bytes. The items of rows with a prefix come after
/// max_slots others, by member and KV head. The rows of partial results are those of all slots,
/// then the members' own, by query token and query head, then the tiles'.
struct ColumnsWorkspace {
  std::int64_t counters;     ///< int32 [max_slots] parts arrived; the schedule zeroes them. Of
                             ///< latents: parts of the cut item that has its first slot here
  std::int64_t members;      ///< int32 number of items of rows with a prefix; of latents: cut items
  std::int64_t items;        ///< ColumnsItem [max_items]; of a cut item: at its first slot
  std::int64_t max_sum;      ///< float2 [max_partials] running maximum and sum
  std::int64_t outputs;      ///< float [max_partials, value dim] unnormalised outputs
  std::int64_t first_slots;  ///< int32 [max_rows] with fixed parts: first slot of a listed row
  std::int64_t segments;     ///< ColumnsSegment [max_segments]; thread block b begins with number b
  std::int64_t bytes;        ///< size of the whole workspace
  std::int32_t blocks;       ///< thread blocks of a launch
  std::int32_t max_slots;    ///< partial results of a thread block's columns
  std::int32_t max_items;
  std::int32_t max_shared_tokens;  ///< most query tokens of all members
};

/// Returns the column groups of a row.
inline std::int32_t column_groups(const ColumnsLimits& limits) noexcept {
  const std::int32_t columns = limits.q_len * (limits.num_q_heads / limits.num_kv_heads);
  const std::int32_t block = columns_shape(limits).columns;
  return (columns + block - 1) / block;
}

/// Returns the slabs of a fixed part.
constexpr std::int32_t fixed_part_slabs(const ColumnsShape& shape) noexcept {
  return kFixedPartTokens / shape.slab_tokens;
}

/// Returns the most query tokens of all rows that share prefixes. Rows with more than a few tokens
/// take the places of others.
constexpr std::int32_t max_shared_tokens(const ColumnsLimits& limits) noexcept {
  return limits.shared_rows * std::min(limits.q_len, 4);
}

/// Lays out a workspace. Without fixed parts, a run of a thread block begins and ends with a part
/// at most.
inline ColumnsWorkspace columns_workspace(const ColumnsLimits& limits) noexcept {
  const auto align = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const ColumnsShape shape = columns_shape(limits);
  const std::int64_t heads = limits.num_kv_heads;
  const std::int64_t per_row = heads * column_groups(limits);
  const std::int64_t part_tokens = std::int64_t{fixed_part_slabs(shape)} * shape.slab_tokens;
  // A cut row of n tokens has at most n / part_tokens + 1 parts, and n > part_tokens.
  const std::int64_t whole = limits.fixed_tokens / part_tokens;
  const std::int64_t fixed = (whole + std::min<std::int64_t>(whole, limits.max_rows)) * per_row;
  ColumnsWorkspace w{};
  w.blocks = limits.num_sms * shape.per_sm;
  w.max_shared_tokens = max_shared_tokens(limits);
  // With prefixes, it has two runs of parts: of prefixes, and of rows.
  const std::int64_t runs = limits.shared_rows > 0 ? 2 : 1;
  const std::int64_t slots = std::max<std::int64_t>(2 * runs * w.blocks, fixed);
  const std::int64_t items = slots + limits.shared_rows * heads;
  const std::int64_t partials =
      slots * shape.columns + 2 * std::int64_t{w.max_shared_tokens} * limits.num_q_heads;
  const std::int64_t segments =
      limits.max_rows * per_row + limits.shared_rows * heads + slots + 2 * w.blocks;
  w.max_slots = static_cast<std::int32_t>(slots);
  w.max_items = static_cast<std::int32_t>(items);
  w.counters = 0;
  w.members = align(slots * 4);
  w.items = w.members + 256;
  w.max_sum = align(w.items + items * static_cast<std::int64_t>(sizeof(ColumnsItem)));
  w.outputs = align(w.max_sum + partials * 8);
  w.first_slots = align(w.outputs + partials * columns_value_dim(limits) * 4);
  w.segments = align(w.first_slots + (limits.fixed_tokens > 0 ? limits.max_rows * 4 : 0));
  w.bytes = align(w.segments + segments * static_cast<std::int64_t>(sizeof(ColumnsSegment)));
  return w;
}

/// Returns the most rows that one launch can serve. max_rows and shared_rows of `limits` do not
/// matter.
std::int32_t most_columns_rows(const ColumnsLimits& limits) noexcept;
/// Checks whether a workspace can serve `limits`. Returns invalid_argument or unsupported with the
/// limit.
Status check_columns_limits(const ColumnsLimits& limits) noexcept;
/// Checks the address and size of a workspace. Returns invalid_argument (pointer, alignment) or
/// limit_exceeded (workspace).
Status check_columns_workspace(const ColumnsLimits& limits, const void* workspace,
                               std::int64_t bytes) noexcept;

}  // namespace kvarena::kernels
