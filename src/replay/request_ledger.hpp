#pragma once

/// @file
/// `RequestLedger`: what became of each request, in time and tokens. One thread at a time.

#include "replay/replay_report.hpp"

#include <cstdint>
#include <vector>

namespace kvarena::replay {

/// Counts requests and sequences and their waiting. Times are virtual nanoseconds.
class RequestLedger {
 public:
  /// A request can never be served.
  void reject() { ++rejected_; }
  /// A request was admitted for the first time.
  void start(std::int64_t arrival_ns, std::int64_t now_ns) {
    queueing_us_.push_back((now_ns - arrival_ns) / 1000);
  }
  /// One sequence reached its final length, in that many blocks.
  void finish_sequence(std::int64_t tokens, std::int64_t blocks) {
    final_tokens_ += tokens;
    final_blocks_ += blocks;
  }
  /// All sequences of a request have finished.
  void finish_request(std::int64_t arrival_ns, std::int64_t now_ns) {
    latency_us_.push_back((now_ns - arrival_ns) / 1000);
  }
  /// Requests finished so far.
  std::int64_t completed() const noexcept { return static_cast<std::int64_t>(latency_us_.size()); }
  /// Requests rejected so far.
  std::int64_t rejected() const noexcept { return rejected_; }

  /// Puts the figures into `report`, whose block_size is set. O(n log n).
  void write_to(ReplayReport& report);

 private:
  std::int64_t rejected_ = 0;
  std::int64_t final_tokens_ = 0;
  std::int64_t final_blocks_ = 0;
  std::vector<std::int64_t> queueing_us_;
  std::vector<std::int64_t> latency_us_;
};

}  // namespace kvarena::replay
