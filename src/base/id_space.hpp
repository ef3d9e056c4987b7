#pragma once

/// @file
/// Ranges of numbers for ids that must be told apart wherever they come from: a stream of another
/// device, a ticket of another manager. Each object that issues such ids takes a range at create;
/// the first object of a kind has 1, 2, 3, ... Any thread.

#include <cstdint>

namespace kvarena {

/// Which ids a range is for.
enum class IdKind : std::uint8_t { ticket, stream, event };

/// Ids of one range: the low bits count within the object, the rest says which object.
inline constexpr int kIdCountBits = 40;
inline constexpr std::uint64_t kIdCountMask = (std::uint64_t{1} << kIdCountBits) - 1;

/// The begin of a range that no other object of that kind in this process has, itself never an id.
/// A range comes back after 16 million objects; one is used up after 10^12 ids.
std::uint64_t take_id_space(IdKind kind) noexcept;

}  // namespace kvarena
