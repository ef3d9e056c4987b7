#pragma once

/// @file
/// `Series`: calls that are timed together, and the limits of the time that a measurement takes.

#include "kvarena/base/result.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvarena::meter {

/// Calls of one kind, back to back. Series of one measurement take turns, round by round.
struct Series {
  std::int32_t num_calls = 1;                ///< of a round
  std::function<Status(std::int32_t)> call;  ///< the number of the call
};

/// What a measurement of several series found.
struct Medians {
  std::vector<double> us;   ///< of one call of each series
  std::int32_t rounds = 0;  ///< that the medians are taken of
};

/// A measurement of slow calls has fewer calls a round and fewer rounds.
struct TimeLimits {
  double round_us;  ///< of a round's calls; at least one call is made
  double all_us;    ///< of all rounds of a series; at least kFewestRounds are made
};

inline constexpr std::int32_t kFewestRounds = 7;  ///< that a median of slow calls is taken of

/// Calls of a round: at most `most`, if a call takes `us`.
inline std::int32_t calls_within(const TimeLimits& limits, std::int32_t most, double us) noexcept {
  return static_cast<std::int32_t>(
      std::clamp(limits.round_us / us, 1.0, std::max(1.0, 1.0 * most)));
}

/// Rounds: at most `most`, if the longest round takes `us`.
inline std::int32_t rounds_within(const TimeLimits& limits, std::int32_t most, double us) noexcept {
  const double fewest = std::min(most, kFewestRounds);
  return static_cast<std::int32_t>(std::clamp(limits.all_us / us, fewest, 1.0 * most));
}

/// The middle one of `values`, which are reordered.
template <class Value>
Value median(std::vector<Value>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace kvarena::meter
