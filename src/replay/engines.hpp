#pragma once

/// @file
/// The engines: a replay on one of the clocks, from the first request to the end of the trace.

#include "replay/admission.hpp"
#include "replay/arrivals.hpp"
#include "replay/engine_pool.hpp"
#include "replay/instruments.hpp"
#include "replay/replay_options.hpp"

#include "kvarena/capacity/step_time.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <span>
#include <vector>

namespace kvarena::replay {

struct StepLoad {
  std::int64_t prompt_tokens = 0;               ///< of all sequences, recomputed ones included
  std::int64_t decode_tokens = 0;               ///< one for each sequence that decodes
  std::span<const capacity::StepTimeRow> rows;  ///< sequence by sequence
};

/// Computes how long a step of the engine takes, by fixed costs of its tokens or by a GPU's
/// roofline.
class StepClock {
 public:
  virtual ~StepClock() = default;
  /// Returns the nanoseconds of a step with at least one token; nullopt when they leave the range
  /// of 64 bits.
  virtual std::optional<std::int64_t> step_ns(const StepLoad& load) const = 0;
};

/// Makes the clock that `options` choose. Requires a clock other than `linear`.
std::unique_ptr<StepClock> make_step_clock(const ReplayOptions& options);

/// The linear clock. Each request holds the blocks of its final length for
/// `prefill_ns * input + decode_ns * output` from its start, as if it ran alone. A request starts
/// on arrival, or later when the blocks are free. At equal times, ends come before starts. With an
/// unlimited pool this is the hold model of the trace folder's README, computed with the real block
/// manager.
class LinearEngine {
 public:
  LinearEngine(const ReplayOptions& options, ArrivalFeed& feed, EnginePool& pool,
               Instruments& instruments);
  /// Replays to the end of the trace.
  MaybeFailure run();
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
  std::vector<Hold> holds_;           // a heap, the earliest end first
  std::vector<std::int32_t> tokens_;  // of one append, with a prefix cache
  std::int64_t started_ = 0;
  std::int64_t now_ns_ = 0;
};

/// The step and roofline clocks, continuous batching as serving engines do it. A step decodes one
/// token of every running sequence past its prompt. It gives the rest of the token budget to
/// prompts (in chunks, oldest first) and to new requests (first come, first served), and grows all
/// sequences in one append. When blocks run out, the newest sequence is preempted. It loses its
/// blocks, except the blocks that it may keep, and waits at the head of the queue to be computed
/// again. The clock decides how long a step takes. Idle time is skipped.
class StepEngine {
 public:
  StepEngine(const ReplayOptions& options, ArrivalFeed& feed, EnginePool& pool,
             Instruments& instruments);
  /// Replays to the end of the trace.
  MaybeFailure run();
  std::int64_t now_ns() const noexcept { return now_ns_; }

 private:
  using JobPtr = std::unique_ptr<Job>;
  struct JobRow {
    Job* job;
    std::int32_t tokens;
  };

  void take_arrivals();
  MaybeFailure step();
  void plan_running();
  MaybeFailure admit();
  MaybeFailure grow();
  bool shorten_newest();
  MaybeFailure make_room(const Status& cause);
  MaybeFailure preempt_newest(const Status& cause);
  MaybeFailure finish_step();
  MaybeFailure fork_samples(std::size_t root);
  MaybeFailure finish(Job& job);
  void pass_time();
  MaybeFailure blocks_lost(const Job& job) const;
  void add_row(Job& job, std::int64_t tokens);
  void tell_tokens();
  std::int64_t seats_taken() const noexcept;
  void record();

  const ReplayOptions& options_;
  ArrivalFeed& feed_;
  EnginePool& pool_;
  Instruments& instruments_;
  PreemptedSequences kept_;
  Admission admission_;
  std::deque<JobPtr> waiting_;            // first come first; preempted jobs in front
  std::vector<JobPtr> running_;           // in order of admission
  std::vector<JobRow> rows_;              // of this step, in the order of running_
  std::vector<AppendDemand> demands_;     // the same
  std::vector<std::int32_t> tokens_;      // of demands_, with a prefix cache
  std::vector<verify::StepRow> written_;  // the same
  std::unique_ptr<StepClock> clock_;
  std::vector<capacity::StepTimeRow> clock_rows_;  // of this step
  std::int64_t budget_ = 0;                        // tokens left in this step
  std::int64_t promised_forks_ = 0;                // sequences that running jobs will fork
  std::int64_t lost_tokens_ = 0;                   // by preempted sequences
  std::int64_t now_ns_ = 0;
  bool time_overflow_ = false;
};

}  // namespace kvarena::replay
