#pragma once

/// @file
/// `ArrivalFeed`: gives the requests of a trace to an engine. It looks one request ahead, adds up
/// the requests taken, and limits their number. `TraceSurvey`: the first pass over a trace: its
/// totals, and the most blocks and sequences that a replay of it can hold at a time, so that an
/// unlimited pool can be sized before the replay starts. Move-only; one thread at a time.

#include "replay/failure.hpp"
#include "replay/replay_options.hpp"
#include "trace/trace_reader.hpp"

#include <cstdint>
#include <memory>

namespace kvarena::replay {

/// The requests of a trace in order of arrival.
class ArrivalFeed {
 public:
  /// `max_requests` 0 means all.
  ArrivalFeed(trace::TraceReader reader, std::int64_t max_requests);

  /// Returns the next request, or nullptr after the last one and after a failure. Valid until
  /// take().
  const TraceRequest* peek();
  /// Takes the request that peek() returned. Requires that there is one.
  std::shared_ptr<const TraceRequest> take();
  /// Returns why the trace ended early.
  MaybeFailure failure() const;

  std::int64_t requests() const noexcept { return requests_; }
  std::int64_t input_tokens() const noexcept { return input_tokens_; }
  std::int64_t output_tokens() const noexcept { return output_tokens_; }
  /// As TraceReader.
  std::int64_t num_salts() const noexcept { return reader_.num_salts(); }
  /// Whether the trace can be read again.
  bool is_rereadable() const noexcept { return reader_.is_rereadable(); }
  trace::TraceFormat format() const noexcept { return reader_.format(); }

 private:
  trace::TraceReader reader_;
  std::int64_t max_requests_;
  std::shared_ptr<TraceRequest> next_;
  bool ended_ = false;
  bool failed_ = false;
  std::int64_t requests_ = 0;
  std::int64_t input_tokens_ = 0;
  std::int64_t output_tokens_ = 0;
};

/// The most that a replay of the trace needs.
struct TraceSurvey {
  std::int64_t requests = 0;         ///< those that will be replayed or rejected; 0: unknown
  std::int64_t tokens = 0;           ///< prompts and outputs of all samples; 0: unknown
  std::int64_t longest_tokens = 1;   ///< prompt and output of one that may run
  std::int64_t worst_blocks = 1;     ///< never more at a time; with groups pages
  std::int64_t worst_sequences = 1;  ///< never more at a time
};

constexpr std::int64_t blocks_for(std::int64_t tokens, std::int64_t block_size) noexcept {
  return (tokens + block_size - 1) / block_size;
}

/// Returns when a request that starts at `start_ns` ends on the linear clock, if `cached` tokens of
/// its prompt need not be computed; nullopt past 2^63 - 1.
std::optional<std::int64_t> linear_end_ns(const TraceRequest& request, std::int64_t cached,
                                          std::int64_t start_ns, const ReplayCosts& costs) noexcept;

/// Returns bounds that hold for every trace when the pool has a given size.
TraceSurvey survey_without_reading(const ReplayOptions& options) noexcept;

/// Reads `feed` to its end. For the linear clock without limits the worst case is exact (the peak
/// of the holds); otherwise it is the sum over the largest requests that may run together.
/// O(requests * log(requests at a time)).
std::optional<ReplayFailure> survey_trace(ArrivalFeed& feed, const ReplayOptions& options,
                                          TraceSurvey& survey);

}  // namespace kvarena::replay
