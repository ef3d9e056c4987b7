#pragma once

/// @file
/// The options of a BlockManager. Plain values.

#include "kvarena/allocator/eviction_policy.hpp"
#include "kvarena/allocator/page_pool.hpp"

#include <cstdint>
#include <span>
#include <string_view>

namespace kvarena {

class OperationLog;

/// Options of a block manager.
struct BlockManagerOptions {
  std::int64_t num_blocks = 0;  ///< 1 .. KvLayout::kMaxBlocks; with groups the number of pages,
                                ///< which have at most that many blocks
  std::int64_t watermark_blocks = 0;   ///< admission leaves at least this many available
  std::int32_t max_holders = 4096;     ///< holders at a time, 1 .. 2^24
  std::int32_t max_open_tickets = 64;  ///< tickets at a time, 1 .. 2^30
  std::int64_t max_fence_entries = 0;  ///< references waiting for tickets; 0: kSharers x num_blocks
  OperationLog* log = nullptr;  ///< borrowed; receives every mutating call, see operation_log.hpp
  std::string_view name = {};  ///< copied; names the pool to the violation handler and in log lines
  std::span<const BlockGroup>
      groups{};  ///< copied; at most kMaxBlockGroups; none: a page is a block
  /// Which evictable block goes first; with groups, which page (page_pool.hpp).
  EvictionPolicy eviction = EvictionPolicy::tail_first;
  std::int64_t page_bytes = 0;  ///< bytes of a page, for reports; 0: not told
};

}  // namespace kvarena
