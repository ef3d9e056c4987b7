#pragma once

/// @file
/// `PreemptedSequences`: what preempted sequences keep of their blocks until somebody needs them.
/// The sequence that was preempted first loses first, from its end. Kept blocks count as free: no
/// admission and no growth fails for want of them. Borrows pool and jobs. One thread at a time.

#include "replay/engine_pool.hpp"
#include "replay/job.hpp"

#include <cstdint>
#include <deque>

namespace kvarena::replay {

/// The kept blocks of all waiting jobs.
class PreemptedSequences {
 public:
  explicit PreemptedSequences(EnginePool& pool) : pool_(pool) {}

  /// Keeps the full blocks of a job that was just preempted, but for the one with its last token,
  /// which is computed again; what is left is its length. A job without any loses its sequence.
  Status keep(Job& job);
  /// The job runs again or its sequence goes.
  void forget(const Job& job);
  /// Makes up to `blocks` kept blocks free; `spared` (may be null) keeps all of its own. Tokens
  /// that are lost are added to `*lost_tokens`. Returns how many became free.
  Result<std::int64_t> reclaim(std::int64_t blocks, const Job* spared, std::int64_t* lost_tokens);

  /// Kept blocks, all in all.
  std::int64_t blocks() const noexcept { return blocks_; }
  /// Tokens in them: they are full.
  std::int64_t tokens() const noexcept { return blocks_ * pool_.block_size(); }
  /// Those of one waiting job.
  std::int64_t blocks_of(const Job& job) const noexcept {
    return job.sequence == kNoSequence ? 0 : job.length / pool_.block_size();
  }

 private:
  Status cut(Job& job, std::int64_t blocks);

  EnginePool& pool_;
  std::deque<Job*> jobs_;  // preempted first, first
  std::int64_t blocks_ = 0;
};

}  // namespace kvarena::replay
