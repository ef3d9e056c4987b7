#pragma once

/// @file
/// `ReleaseProbe`: which blocks would come back if references were given up. It lowers the counts
/// of the blocks for the time of the question and raises them again, so that it needs no memory and
/// knows what is shared; nobody sees the lowered counts, since a manager belongs to one thread.

#include "kvarena/allocator/block_manager.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// Use: lower() for list after list, then raise() for each of them. Between the two the manager is
/// used for nothing else.
struct ReleaseProbe {
  /// Takes one live reference from each block. Returns how many of them are free or evictable
  /// without it. Requires that each is held, once for each time it is listed. O(ids).
  static std::int64_t lower(BlockManager& manager, std::span<const BlockId> ids) noexcept;
  /// Gives the references of such a list back. O(ids).
  static void raise(BlockManager& manager, std::span<const BlockId> ids) noexcept;
};

}  // namespace kvarena
