#pragma once

/// @file
/// The shared prefixes of a step in device memory: written by find_prefixes, read by the schedule
/// of the columns kernel and by the kernel.

#include "kernels/columns/columns_workspace.h"

#include <cstddef>
#include <cstdint>

namespace kvarena::kernels {

/// Rounds of the search: groups, groups within them, and groups within these.
inline constexpr std::int32_t kPrefixRounds = 3;

/// The numbers of a step.
struct PrefixHeader {
  std::int32_t num_tiles;
  std::int32_t num_members;
};

/// Neighbouring members of a group whose columns a thread block has together. A member is never
/// in two tiles.
struct PrefixTile {
  std::int32_t table_row;      ///< whose first blocks are read
  std::int32_t shared_tokens;  ///< of the group
  std::int32_t first_member;
  std::int32_t end_member;
  std::int32_t first_token;  ///< in the list of query tokens of all members
  std::int32_t end_token;
};

/// A row with a prefix. Members are in the order of their groups.
struct PrefixMember {
  std::int32_t row;  ///< of the batch
  std::int32_t tile;
  std::int32_t first_token;  ///< in the list of query tokens
};

/// The offsets of the arrays, in bytes.
struct PrefixPlan {
  std::int64_t header;   ///< PrefixHeader
  std::int64_t tiles;    ///< PrefixTile [shared_rows]
  std::int64_t members;  ///< PrefixMember [shared_rows]
  std::int64_t tokens;   ///< int32 [max_shared_tokens] query tokens of the members, in q and out
  std::int64_t leaders;  ///< int32 [kPrefixRounds, shared_rows] of the search
  std::int64_t depths;   ///< int32 [kPrefixRounds, shared_rows] of the search
  std::int64_t bytes;    ///< size
};

/// Lays out the arrays.
inline PrefixPlan prefix_plan(const ColumnsLimits& limits) noexcept {
  const auto align = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const auto array = [&](std::int64_t count, std::size_t bytes) {
    return align(count * static_cast<std::int64_t>(bytes));
  };
  const std::int64_t rows = limits.shared_rows;
  PrefixPlan plan{};
  plan.tiles = array(1, sizeof(PrefixHeader));
  plan.members = plan.tiles + array(rows, sizeof(PrefixTile));
  plan.tokens = plan.members + array(rows, sizeof(PrefixMember));
  plan.leaders = plan.tokens + array(max_shared_tokens(limits), sizeof(std::int32_t));
  plan.depths = plan.leaders + array(kPrefixRounds * rows, sizeof(std::int32_t));
  plan.bytes = plan.depths + array(kPrefixRounds * rows, sizeof(std::int32_t));
  return plan;
}

}  // namespace kvarena::kernels
