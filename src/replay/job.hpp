#pragma once

/// @file
/// What an engine schedules. A request becomes one job, or after its prompt as many as it has
/// samples; from then on each is admitted, preempted and finished on its own. Plain data of the
/// engines.

#include "replay/token_content.hpp"
#include "replay/trace_request.hpp"

#include "kvarena/base/ids.hpp"

#include <cstdint>
#include <memory>

namespace kvarena::replay {

/// A request under way.
struct ActiveRequest {
  std::shared_ptr<const TraceRequest> trace;
  std::int32_t unfinished = 1;  ///< sequences that have not reached their final length
  bool started = false;         ///< was admitted once

  /// Virtual nanoseconds.
  std::int64_t arrival_ns() const noexcept { return trace->arrival_us * 1000; }
  /// Prompt and output.
  std::int64_t final_length() const noexcept { return trace->input_tokens + trace->output_tokens; }
};

/// One sequence of a request, waiting or running.
struct Job {
  std::shared_ptr<ActiveRequest> request;
  std::int32_t sample = 0;            ///< which of the request's sequences
  std::int32_t to_fork = 0;           ///< sequences still to fork off after the prompt
  SequenceId sequence = kNoSequence;  ///< while running
  bool preempted = false;             ///< lost its blocks at least once
  std::int64_t length = 0;            ///< tokens in the tables
  std::int64_t prefill_length =
      0;                        ///< tokens to prefill: the prompt and what was lost of the output
  TokenStream stream;           ///< content of the tokens in the tables
  std::uint64_t last_hash = 0;  ///< prefix hash of the last token in the tables

  /// Brings stream and last_hash to the tokens in the tables. O(length).
  void rewind_stream() {
    stream = TokenStream(request->trace, sample);
    for (std::int64_t i = 0; i < length; ++i) last_hash = stream.next();
  }
  /// Whether it decodes: its prefill is done.
  bool decodes() const noexcept { return length >= prefill_length; }
  /// Whether it has all its tokens.
  bool is_finished() const noexcept { return length == request->final_length(); }
};

}  // namespace kvarena::replay
