#pragma once

/// @file
/// `ReleaseProbe`: computes which blocks would come back if references were given up. It lowers the
/// reference counts of the blocks during the question and raises them afterwards. It therefore
/// needs no memory and takes sharing into account. Nobody sees the lowered counts, because a
/// manager belongs to one thread.

#include "kvarena/allocator/block_manager.hpp"

#include <cstdint>
#include <span>

namespace kvarena {

/// Call lower() for list after list, then raise() for each of them. The manager must not be used
/// between the two.
struct ReleaseProbe {
  /// Takes one live reference from each block. Returns how many of the blocks are free or evictable
  /// then; in a pool with groups, how many pages have no held block then. Requires that each block
  /// is held, once for each time it is listed. O(ids).
  static std::int64_t lower(BlockManager& manager, std::span<const BlockId> ids) noexcept;
  /// Gives the references of such a list back. O(ids).
  static void raise(BlockManager& manager, std::span<const BlockId> ids) noexcept;
  /// Prepares the cache for the release of a block. Requires a block of the manager.
  static void prefetch(const BlockManager& manager, BlockId id) noexcept;
};

}  // namespace kvarena
