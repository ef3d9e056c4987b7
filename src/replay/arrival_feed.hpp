#pragma once

/// @file
/// `ArrivalFeed`: gives the requests of a trace to an engine. It looks one request ahead, adds up
/// the requests taken, and limits their number. Move-only; one thread at a time.

#include "replay/failure.hpp"
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

  /// Requests taken so far.
  std::int64_t requests() const noexcept { return requests_; }
  /// Prompt tokens of the requests taken.
  std::int64_t input_tokens() const noexcept { return input_tokens_; }
  /// Output tokens of the requests taken.
  std::int64_t output_tokens() const noexcept { return output_tokens_; }
  /// As TraceReader.
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

/// A defect of the trace as a failure of the replay.
ReplayFailure bad_trace(const Finding& defect);

}  // namespace kvarena::replay
