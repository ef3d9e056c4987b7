#pragma once

/// @file
/// The jobs that an engine schedules. A request is one job during its prompt. After the prompt
/// there is one job for each sample, and each is admitted, preempted and finished on its own. Plain
/// data of the engines.

#include "trace/trace_request.hpp"
#include "verify/sequence.hpp"

#include <cstdint>
#include <memory>

namespace kvarena::replay {

/// A request under way.
struct ActiveRequest {
  std::shared_ptr<const trace::TraceRequest> trace;
  std::shared_ptr<const verify::SequenceContent> content;  ///< null with attention off
  std::int32_t unfinished = 1;  ///< sequences that have not reached their final length
  bool started = false;         ///< was admitted once

  /// Virtual nanoseconds.
  std::int64_t arrival_ns() const noexcept { return trace->arrival_us * 1000; }
  /// Prompt and output.
  std::int64_t final_length() const noexcept { return trace->input_tokens + trace->output_tokens; }
};

/// One sequence of a request, waiting or running. It must prefill its prompt and the lost part of
/// its output.
struct Job : verify::WrittenSequence {
  std::shared_ptr<ActiveRequest> request;
  std::int32_t to_fork = 0;  ///< sequences still to fork off after the prompt
  bool preempted = false;    ///< lost its blocks at least once

  /// Moves the stream, if there is one, to the end of the tokens in the tables. O(length).
  void rewind_stream() {
    if (request->content == nullptr) return;
    stream = stream.from_start();
    while (stream.position() < length) static_cast<void>(stream.next());
  }
  /// Returns whether the sequence has all its tokens.
  bool is_finished() const noexcept { return length == request->final_length(); }
};

}  // namespace kvarena::replay
