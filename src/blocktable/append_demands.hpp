#pragma once

/// @file
/// The demands of the two public appends, as their templates read them.

#include "kvarena/blocktable/sequences.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace kvarena {

/// The demands of append.
struct ListedDemands {
  std::span<const AppendDemand> list;
  std::size_t size() const noexcept { return list.size(); }
  SequenceId id(std::size_t i) const noexcept { return list[i].sequence; }
  std::int64_t tokens(std::size_t i) const noexcept { return list[i].num_tokens; }
  std::optional<Urgency> urgency(std::size_t i) const noexcept { return list[i].urgency; }
};

/// The demands of append_one_each: one token for each sequence.
struct OneEach {
  std::span<const SequenceId> list;
  std::size_t size() const noexcept { return list.size(); }
  SequenceId id(std::size_t i) const noexcept { return list[i]; }
  static constexpr std::int64_t tokens(std::size_t) noexcept { return 1; }
  static constexpr std::optional<Urgency> urgency(std::size_t) noexcept { return std::nullopt; }
};

/// The refusal of a length past a sequence's maximum.
inline Status too_long(SequenceId id, std::int64_t length, std::int64_t max_length) noexcept {
  return {StatusCode::context_length_exceeded,
          Resource::sequence_length,
          Option::none,
          0,
          id.value,
          static_cast<std::uint64_t>(length),
          static_cast<std::uint64_t>(max_length)};
}

}  // namespace kvarena
