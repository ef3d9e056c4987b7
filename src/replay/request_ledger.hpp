#pragma once

/// @file
/// `RequestLedger`: records the times and tokens of each request. One thread at a time.

#include "replay/replay_report.hpp"
#include "trace/trace_request.hpp"

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace kvarena::replay {

/// Counts requests and sequences and their waiting. Times are virtual nanoseconds.
class RequestLedger {
 public:
  /// From the first request on, keeps what write_times writes.
  void keep_times() noexcept { keeps_times_ = true; }

  /// Records that a request was read. Requests come in the order of their indices.
  void arrive(const trace::TraceRequest& request);
  /// Records that the request can never be served.
  void reject(const trace::TraceRequest& request, const std::string& why);
  /// Records that the request was admitted. Only the first time counts.
  void start(const trace::TraceRequest& request, std::int64_t now_ns);
  /// Records that the prompt has been computed. Only the first time counts.
  void compute_prompt(const trace::TraceRequest& request, std::int64_t now_ns);
  /// Records that one sequence reached its final length, in `blocks` blocks.
  void finish_sequence(std::int64_t tokens, std::int64_t blocks) {
    final_tokens_ += tokens;
    final_blocks_ += blocks;
  }
  /// Records that all sequences of a request have finished.
  void finish_request(const trace::TraceRequest& request, std::int64_t now_ns);

  /// Requests finished so far.
  std::int64_t completed() const noexcept { return static_cast<std::int64_t>(latency_us_.size()); }
  /// Requests rejected so far.
  std::int64_t rejected() const noexcept { return rejected_; }

  /// Puts the figures into `report`, whose block_size is set. O(n log n).
  void write_to(ReplayReport& report);
  /// Writes when each request was served, as CSV.
  void write_times(std::ostream& out) const;

 private:
  static constexpr std::int64_t kNever = -1;
  struct Times {
    std::int64_t arrival_ns = 0;
    std::int64_t started_ns = kNever;
    std::int64_t prompt_ns = kNever;
    std::int64_t finished_ns = kNever;
  };
  void set(const trace::TraceRequest& request, std::int64_t Times::*time, std::int64_t now_ns);

  bool keeps_times_ = false;
  std::vector<Times> times_;
  std::int64_t rejected_ = 0;
  std::string first_rejection_;
  std::int64_t final_tokens_ = 0;
  std::int64_t final_blocks_ = 0;
  std::vector<std::int64_t> queueing_us_;
  std::vector<std::int64_t> latency_us_;
};

}  // namespace kvarena::replay
