#pragma once

/// @file
/// The first pass over a trace: its totals, and the most blocks and sequences that a replay of it
/// can hold at a time, so that an unlimited pool can be sized before the replay starts.

#include "replay/arrival_feed.hpp"
#include "replay/replay_options.hpp"

#include <cstdint>

namespace kvarena::replay {

/// The most that a replay of the trace needs.
struct TraceSurvey {
  std::int64_t requests = 0;         ///< those that will be replayed or rejected; 0: unknown
  std::int64_t tokens = 0;           ///< prompts and outputs of all samples; 0: unknown
  std::int64_t longest_tokens = 1;   ///< prompt and output of one that may run
  std::int64_t worst_blocks = 1;     ///< never more at a time
  std::int64_t worst_sequences = 1;  ///< never more at a time
};

/// Blocks of `tokens` tokens.
constexpr std::int64_t blocks_for(std::int64_t tokens, std::int64_t block_size) noexcept {
  return (tokens + block_size - 1) / block_size;
}

/// Returns when a request that starts at `start_ns` ends on the linear clock; nullopt past 2^63 -
/// 1.
std::optional<std::int64_t> linear_end_ns(const TraceRequest& request, std::int64_t start_ns,
                                          const ReplayCosts& costs) noexcept;

/// Returns bounds that hold for every trace when the pool has a given size.
TraceSurvey survey_without_reading(const ReplayOptions& options) noexcept;

/// Reads `feed` to its end. For the linear clock without limits the worst case is exact (the peak
/// of the holds); otherwise it is the sum over the largest requests that may run together.
/// O(requests * log(requests at a time)).
std::optional<ReplayFailure> survey_trace(ArrivalFeed& feed, const ReplayOptions& options,
                                          TraceSurvey& survey);

}  // namespace kvarena::replay
