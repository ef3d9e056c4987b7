#pragma once

/// @file
/// Ranges of numbers for ids. With them an id shows which object issued it: for example a stream of
/// another device, or a ticket of another manager. Each object that issues such ids takes a range
/// at create. The first object of a kind has 1, 2, 3, ... Any thread.

#include <cstdint>

namespace kvarena {

/// The kind of id that a range is for.
enum class IdKind : std::uint8_t { ticket, stream, event, prefix_position };

/// The low bits of an id count within its object; the high bits are the object's range.
inline constexpr int kIdCountBits = 40;
inline constexpr std::uint64_t kIdCountMask = (std::uint64_t{1} << kIdCountBits) - 1;

/// Returns the begin of a range that no other object of that kind in this process has. The begin
/// itself is never an id. A range is used again after 16 million objects, and is used up after
/// 10^12 ids.
std::uint64_t take_id_space(IdKind kind) noexcept;

}  // namespace kvarena
