#pragma once

/// @file
/// What a PagePool keeps for a page. Plain values.

#include "kvarena/base/ids.hpp"

#include <cstdint>

namespace kvarena {

using PageSlots = std::uint64_t;               ///< bit k stands for slot k
inline constexpr std::uint32_t kNoPage = ~0U;  ///< "no page" in a list link

/// The queue of a page: `cached` pages of a group have evictable blocks and held ones. `idle`
/// pages have only evictable and free blocks, so they can be turned.
enum class PageQueue : std::uint8_t { none, cached, idle, offline };

/// A page, its slots and its places in lists.
struct alignas(64) PooledPage {
  PageSlots free = 0;             ///< of a carved page
  PageSlots evictable = 0;        ///< of a carved page
  HolderId owner;                 ///< the holder that turned it, which may have ended
  std::uint32_t older = kNoPage;  ///< pages that the owner turned for the group before and after it
  std::uint32_t newer = kNoPage;
  std::uint32_t fuller_previous = kNoPage;  ///< pages of the group with as many free slots
  std::uint32_t fuller_next = kNoPage;
  std::uint32_t queue_previous = kNoPage;  ///< pages of the same queue
  std::uint32_t queue_next = kNoPage;
  std::int8_t group = -1;  ///< -1: none
  PageQueue queue = PageQueue::none;
  std::uint8_t bucket = 0;    ///< the free slots of the list it is in; 0: in none
  std::uint8_t num_free = 0;  ///< set bits
  std::uint8_t num_evictable = 0;
  std::uint8_t num_offline = 0;
  bool is_kept = false;     ///< nobody takes single slots of it: its owner keeps its pages
  bool is_mixed = false;    ///< its owner cannot count on getting the whole page back
  std::uint32_t mark = 0;   ///< for a caller, who leaves 0
  std::uint32_t turns = 0;  ///< how often it was carved
};
static_assert(sizeof(PooledPage) == 64);

/// Held slots of a page that become free or evictable together.
struct ReturnedSlots {
  PageSlots freed = 0;
  PageSlots cached = 0;
  std::int32_t num_freed = 0;  ///< set bits
  std::int32_t num_cached = 0;
  void add(std::int32_t slot, bool is_cached) noexcept {
    (is_cached ? cached : freed) |= PageSlots{1} << slot;
    ++(is_cached ? num_cached : num_freed);
  }
};

}  // namespace kvarena
