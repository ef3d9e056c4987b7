#pragma once

/// @file
/// The demands of the public appends, as the one append behind them reads them: by index, an id, a
/// number of tokens, an urgency, and the tokens when they are told.

#include "kvarena/base/status.hpp"
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
  std::span<const std::int32_t> values(std::size_t i) const noexcept { return list[i].tokens; }
};

/// The demands of append_one_each: one token for each sequence.
struct OneEach {
  std::span<const SequenceId> list;
  std::size_t size() const noexcept { return list.size(); }
  SequenceId id(std::size_t i) const noexcept { return list[i]; }
  static constexpr std::int64_t tokens(std::size_t) noexcept { return 1; }
  static constexpr std::optional<Urgency> urgency(std::size_t) noexcept { return std::nullopt; }
  static constexpr std::span<const std::int32_t> values(std::size_t) noexcept { return {}; }
};

/// The same, with the tokens, one for each sequence.
struct OneKnownEach : OneEach {
  std::span<const std::int32_t> tokens_of_all;
  std::span<const std::int32_t> values(std::size_t i) const noexcept {
    return tokens_of_all.subspan(i, 1);
  }
};

/// The tokens of a demand are all or none.
inline Status check_values(std::span<const std::int32_t> values, std::int64_t wanted) noexcept {
  const std::int64_t count = std::ssize(values);
  if (count == 0 || count == wanted) return {};
  return invalid_argument(Resource::span_size, count, wanted, wanted);
}

/// The refusal of a call whose demands up to `id` have `num_tokens` tokens.
inline Status too_many_tokens(std::int64_t num_tokens, std::int64_t most, SequenceId id) noexcept {
  return limit_exceeded(Resource::num_tokens, static_cast<std::uint64_t>(num_tokens),
                        static_cast<std::uint64_t>(most), Option::max_append_tokens, id.value);
}

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
