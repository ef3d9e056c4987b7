#pragma once

/// @file
/// `PreemptedSequences`: the blocks that preempted sequences keep until another sequence needs
/// them. The sequence that was preempted first loses its blocks first, from its end. Kept blocks
/// count as free, so they never make an admission or growth fail. Borrows pool and jobs. One thread
/// at a time.

#include "replay/engine_pool.hpp"
#include "replay/job.hpp"

#include <cstdint>
#include <deque>

namespace kvarena::replay {

/// The kept blocks of all waiting jobs.
class PreemptedSequences {
 public:
  explicit PreemptedSequences(EnginePool& pool) : pool_(pool) {}

  /// Keeps the full blocks of a job that was just preempted, except the block with its last token,
  /// which is computed again. The job's length becomes the tokens in the kept blocks. A job without
  /// such blocks loses its sequence.
  Status keep(Job& job);
  /// Forgets a job that runs again or whose sequence is destroyed.
  void forget(const Job& job);
  /// Frees up to `blocks` kept blocks, but none of `spared` (may be null). Adds the lost tokens to
  /// `*lost_tokens`. Returns the number of freed blocks.
  Result<std::int64_t> reclaim(std::int64_t blocks, const Job* spared, std::int64_t* lost_tokens);

  /// Returns the number of all kept blocks.
  std::int64_t blocks() const noexcept { return blocks_; }
  /// Returns the tokens in all kept blocks, which are full.
  std::int64_t tokens() const noexcept { return blocks_ * pool_.block_size(); }
  /// Returns the kept blocks of one waiting job.
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
