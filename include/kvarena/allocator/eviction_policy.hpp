#pragma once

/// @file
/// Which cached blocks a BlockManager evicts first, and what a caller can say about a block. Plain
/// values.
///
/// With every policy an eviction costs O(1), amortised: no call searches the blocks. Referenced and
/// fenced blocks are never evicted. Equal calls evict equal blocks. In a pool with groups a policy
/// orders pages: page_pool.hpp has what each means there.

#include "kvarena/base/export.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace kvarena {

/// Which evictable block goes first. A block is evictable while its content is published and nobody
/// holds it.
enum class EvictionPolicy : std::uint8_t {
  /// The block that became evictable first (least recently used). The blocks of one call become
  /// evictable in the order given. Release a sequence from its last block to its first, as
  /// BlockTables does: then its tail goes before its head.
  tail_first,
  /// The same, but the successive blocks that one holder releases (or one ticket ends), with no
  /// other change to the evictable blocks in between, are put in the opposite order. So of a
  /// sequence that is released from its last block the head goes before the tail. Each ticket that
  /// ends begins anew, also one without blocks.
  head_first,
  /// The block that became evictable for the first time first: later uses do not matter. A block
  /// whose turn comes while it is held is passed over. It is next when it is evictable again; among
  /// such blocks the one that is evictable again first.
  fifo,
  /// The block that was used least often; among equals the one that became evictable first. A block
  /// is used once when it is made, and once with each retain while it is published. Counts end at
  /// kMaxCountedUses. An evicted block is forgotten.
  lfu,
  /// The block of the lowest priority; among equals the one that became evictable first. See
  /// RetentionHint.
  priority,
};

/// LFU counts no further.
inline constexpr std::int64_t kMaxCountedUses = (std::int64_t{1} << 18) - 1;

/// All policies.
inline constexpr std::array kEvictionPolicies{EvictionPolicy::tail_first,
                                              EvictionPolicy::head_first, EvictionPolicy::fifo,
                                              EvictionPolicy::lfu, EvictionPolicy::priority};

/// Returns "tail-first", "head-first", "fifo", "lfu" or "priority".
KVARENA_EXPORT std::string_view name_of(EvictionPolicy policy) noexcept;
/// Returns the policy with this name, or nullopt.
KVARENA_EXPORT std::optional<EvictionPolicy> eviction_policy_of(std::string_view name) noexcept;

/// How long a published block should stay, for EvictionPolicy::priority. A block for which nothing
/// is said has the default.
struct RetentionHint {
  static constexpr std::int32_t kMaxPriority = 100;   ///< evicted last
  static constexpr std::int32_t kUsualPriority = 35;  ///< of blocks for which nothing is said
  /// It does not expire.
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  std::int32_t priority = kUsualPriority;  ///< 0 (evicted first) .. kMaxPriority
  /// From this time on the priority is kUsualPriority, as if the block had become evictable at that
  /// time. In the unit of the clock that the caller advances (BlockManager::advance_clock), >= 0.
  std::int64_t expires_at = kNever;
  friend bool operator==(const RetentionHint&, const RetentionHint&) = default;
};

}  // namespace kvarena
