#pragma once

/// @file
/// What a prefix cache keeps for one salt, and how much it may keep. Plain values.
///
/// A salt with an account has an order of its own: the blocks that its sequences gave up, by the
/// time at which that was last done. A sequence that ends, or is cut, gives up the published blocks
/// of its prefix from the last to the first, so the first is the newest.

#include <cstdint>
#include <limits>

namespace kvarena {

/// Bounds of the blocks of one salt.
struct SaltLimits {
  static constexpr std::int64_t kNoCap = std::numeric_limits<std::int64_t>::max();  ///< none
  static constexpr int kPassedOver = 16;  ///< blocks in use, for each new block past the cap

  /// So many blocks, those that the salt gave up last, are never evicted for others. A holder of
  /// the tables keeps them: they count as referenced, with the purpose "salt floor" and the salt as
  /// owner. An append of the salt's own sequences that lacks blocks uses them, the oldest first; so
  /// does reserve_capacity. With groups of layers a floor is unsupported (floor_blocks): a kept
  /// block is useful only with its windows and states, and each of these would hold a whole page.
  /// A floor keeps blocks when they are given up. A floor that is set or raised later does not keep
  /// what was cached before, and older cached blocks do not take the place of kept ones that are
  /// forgotten or lost.
  /// A block is kept only with those in front of it, because it would go with them. One in front
  /// cannot be kept if it was registered before there was an account, if it waits to leave service,
  /// or if it is cached and all that the pool has left is promised to others.
  std::int64_t floor_blocks = 0;
  /// When the salt has so many registered blocks, a new one takes the place of its oldest that
  /// nobody uses, even if blocks of the pool are free. Blocks in use may exceed it. A new block
  /// passes over at most kPassedOver older ones that pins, tickets or sequences hold. With groups
  /// the blocks of the group that is registered count, and what the others keep for them goes too.
  std::int64_t cap_blocks = kNoCap;
  friend bool operator==(const SaltLimits&, const SaltLimits&) = default;
};

/// The account of a salt.
struct SaltFigures {
  std::int64_t registered = 0;  ///< blocks that its sequences have registered
  std::int64_t kept = 0;        ///< of these, those that the floor keeps
  std::int64_t sequences = 0;   ///< that exist
  SaltLimits limits;            ///< as set
};

}  // namespace kvarena
