#pragma once

/// @file
/// `LinearEngine`: the linear clock. Each request holds the blocks of its final length for
/// `prefill_ns * input + decode_ns * output` from its start, as if it ran alone. A request starts
/// on arrival, or later when the blocks are free. At equal times, ends come before starts. With an
/// unlimited pool this is the hold model of the trace folder's README, computed with the real block
/// manager.

#include "replay/admission.hpp"
#include "replay/arrival_feed.hpp"
#include "replay/engine_pool.hpp"
#include "replay/instruments.hpp"

#include <deque>
#include <memory>
#include <queue>
#include <vector>

namespace kvarena::replay {

/// One replay on the linear clock.
class LinearEngine {
 public:
  LinearEngine(const ReplayOptions& options, ArrivalFeed& feed, EnginePool& pool,
               Instruments& instruments);
  /// Replays to the end of the trace.
  MaybeFailure run();
  /// Virtual time reached.
  std::int64_t now_ns() const noexcept { return now_ns_; }

 private:
  struct Hold {
    std::int64_t end_ns;
    std::int64_t order;  // of its start, so that equal ends have one order
    std::unique_ptr<Job> job;
    bool operator>(const Hold& other) const {
      return end_ns != other.end_ns ? end_ns > other.end_ns : order > other.order;
    }
  };

  /// Does the events from the arrival before to this one as one step.
  MaybeFailure arrive(std::int64_t arrival_ns);
  MaybeFailure end_holds_until(std::int64_t time_ns);
  MaybeFailure finish(Job& job);
  MaybeFailure start_waiting();
  MaybeFailure start(std::unique_ptr<Job> job);
  MaybeFailure grow(Job& job, std::int64_t tokens);
  void take_arrival();
  void record();

  const ReplayOptions& options_;
  ArrivalFeed& feed_;
  EnginePool& pool_;
  Instruments& instruments_;
  PreemptedSequences kept_;  // none: nothing is preempted
  Admission admission_;
  std::deque<std::unique_ptr<Job>> waiting_;
  std::vector<Hold> holds_;  // a heap, the earliest end first
  std::int64_t started_ = 0;
  std::int64_t now_ns_ = 0;
};

}  // namespace kvarena::replay
