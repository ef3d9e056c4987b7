#pragma once

/// @file
/// `GroupMeter`: the groups of a replay's pool over virtual time: pages and blocks in use, and the
/// bytes of pages in use that no block in use has. The numbers come from the block manager. One
/// thread at a time.

#include "replay/replay_report.hpp"

#include "kvarena/allocator/block_manager.hpp"

#include <cstdint>
#include <vector>

namespace kvarena::replay {

class PoolUnits;

/// Pages and blocks at one instant. A page or block is in use while a sequence holds it; cached
/// ones are not.
struct PageUse {
  std::int64_t pages = 0;
  std::int64_t page_bytes = 0;   ///< of these pages
  std::int64_t block_bytes = 0;  ///< of the blocks in use
  friend bool operator==(const PageUse&, const PageUse&) = default;

  /// The share of the bytes of pages in use that no block in use has.
  double waste() const noexcept {
    return page_bytes == 0
               ? 0.0
               : 1.0 - static_cast<double>(block_bytes) / static_cast<double>(page_bytes);
  }
};

class GroupMeter {
 public:
  GroupMeter() = default;
  explicit GroupMeter(const PoolUnits& units);

  /// Records what the manager has from `now_ns` on, and returns it. Times must not fall. O(groups).
  PageUse record(std::int64_t now_ns, const BlockManager& manager);
  /// Puts the figures into `report`. The pool is that of `manager`.
  void write_to(const BlockManager& manager, ReplayReport& report) const;

 private:
  __extension__ using Wide = __int128;

  std::vector<GroupUse> groups_;  // with the blocks at the peak
  std::int64_t page_bytes_ = 0;
  std::int64_t now_ns_ = 0;
  PageUse now_;
  PageUse peak_;
  Wide page_byte_ns_ = 0;
  Wide block_byte_ns_ = 0;
};

}  // namespace kvarena::replay
