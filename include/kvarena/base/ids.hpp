#pragma once

/// @file
/// Strong identifiers. Each wraps one integer and is trivially copyable. The compiler refuses a
/// block id where a sequence id is expected. An array of ids has exactly the bytes that a device
/// reads. No function here fails or allocates.

#include "kvarena/base/export.hpp"

#include <compare>
#include <cstdint>
#include <functional>
#include <type_traits>

namespace kvarena {

/// An integer of type `Rep`. It compares and converts only with ids of the same `Tag`.
template <class Tag, class Rep>
struct StrongId {
  using value_type = Rep;  ///< the underlying integer

  Rep value{};  ///< the raw number, for printing, indexing and device code

  constexpr StrongId() noexcept = default;
  /// Makes the id with this raw number.
  KVARENA_HOST_DEVICE constexpr explicit StrongId(Rep raw) noexcept : value(raw) {}
  friend constexpr auto operator<=>(StrongId, StrongId) noexcept = default;
};

/// A block: the unit of KV storage, 0 .. num_blocks - 1. An id has the bytes of the device's int32.
using BlockId = StrongId<struct BlockTag, std::int32_t>;
/// The number of times that a block has been handed out before. A handle with an older generation
/// is stale.
using Generation = StrongId<struct GenerationTag, std::uint32_t>;
/// A registered holder of block references. The manager that issued an id never reuses it.
using HolderId = StrongId<struct HolderTag, std::uint64_t>;
/// A sequence. The block tables that issued an id never reuse it; other tables issue the same ids.
/// Tables that are called alike, such as those of the ranks of a group, issue equal ids.
using SequenceId = StrongId<struct SequenceTag, std::uint64_t>;
/// Queued work on another stream. Tickets are issued in increasing order and never reused. No other
/// manager of the process issues the same ticket.
using Ticket = StrongId<struct TicketTag, std::uint64_t>;

inline constexpr BlockId kNoBlock{-1};       ///< "no block" in a table row or a list link
inline constexpr SequenceId kNoSequence{0};  ///< never issued
inline constexpr HolderId kNoHolder{0};      ///< never issued
inline constexpr Ticket kNoTicket{0};        ///< never issued

static_assert(sizeof(BlockId) == sizeof(std::int32_t) && std::is_trivially_copyable_v<BlockId>);
static_assert(sizeof(Generation) == sizeof(std::uint32_t));

}  // namespace kvarena

/// Hash support for tests and tools. The library itself finds ids by index.
template <class Tag, class Rep>
struct std::hash<kvarena::StrongId<Tag, Rep>> {
  /// Returns the hash of the raw number.
  std::size_t operator()(kvarena::StrongId<Tag, Rep> id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
