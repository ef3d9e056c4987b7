#pragma once

/// @file
/// `Overload`: runs an engine with more work than its pool can hold. A sequence waits until
/// admission has secured the blocks of its prompt. When blocks run out, the newest running sequence
/// is preempted, waits at the head of the queue and is computed again. Every result is compared,
/// and every sequence is finished. Borrows the engine. One thread at a time.

#include "scenarios/engine.hpp"
#include "verify/failure.hpp"

#include <cstdint>
#include <deque>
#include <vector>

namespace kvarena::scenarios {

/// A sequence of the work to be done.
struct OverloadRequest {
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
};

struct OverloadFigures {
  std::int64_t finished = 0;            ///< sequences
  std::int64_t tokens_finished = 0;     ///< in them
  std::int64_t steps = 0;               ///< that grew something
  std::int64_t admissions_refused = 0;  ///< for want of blocks, the watermark kept
  std::int64_t preemptions = 0;         ///< of running sequences
  std::int64_t recomputed_tokens = 0;   ///< that they lost
  std::int64_t most_running = 0;        ///< at a time
  Status first_refusal;                 ///< of admission
};

class Overload {
 public:
  explicit Overload(CheckedEngine& engine) : engine_(engine) {}
  MaybeFailure run(std::vector<OverloadRequest> requests);
  const OverloadFigures& figures() const noexcept { return figures_; }

 private:
  MaybeFailure admit();
  MaybeFailure grow();
  MaybeFailure preempt_newest(const Status& cause);
  MaybeFailure finish();

  CheckedEngine& engine_;
  OverloadFigures figures_;
  std::deque<OverloadRequest> requests_;  // not begun
  std::deque<Job*> preempted_;            // before them
  std::vector<Job*> running_;             // in order of admission
  std::vector<StepRow> rows_;
};

}  // namespace kvarena::scenarios
