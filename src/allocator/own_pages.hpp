#pragma once

/// @file
/// `OwnPages`: what a holder has in the pages that it turned, in a pool with groups. A promise of
/// pages counts on these. All calls are O(1) and require a registered holder and a group of the
/// pool.

#include "allocator/page_pool.hpp"
#include "kvarena/allocator/block_manager.hpp"

#include <cstdint>

namespace kvarena {

struct OwnPages {
  /// The pages of the pool.
  static const PagePool& pages(const BlockManager& manager) noexcept;
  /// The free slots of the page that the holder turned last: its next blocks of the group.
  static std::int64_t free_slots(const BlockManager& manager, HolderId holder,
                                 std::int32_t group) noexcept;
  /// The pages with blocks that come back when the holder releases its blocks, unless others share
  /// them. Pages of one block are not counted: each of the holder's blocks is one.
  static std::int64_t count(const BlockManager& manager, HolderId holder,
                            std::int32_t group) noexcept;
  /// The index of the demand of the last allocation that took BlockManager::evicted()[i].
  static std::size_t demand_of_evicted(const BlockManager& manager, std::size_t i) noexcept;
};

}  // namespace kvarena
