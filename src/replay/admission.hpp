#pragma once

/// @file
/// `Admission`: decides which request may run, first come, first served. The caller offers the head
/// of its queue and stops at the first request that must wait. Admission secures blocks as
/// `Reserve` says, and leaves the manager's watermark free. A preempted sequence returns only when
/// all its lost tokens fit, because it would otherwise be preempted again at once. Blocks that
/// other preempted sequences keep are freed when they are needed. One thread at a time.

#include "replay/engine_pool.hpp"
#include "replay/job.hpp"
#include "replay/preempted_sequences.hpp"
#include "replay/replay_options.hpp"

#include <cstdint>
#include <string>

namespace kvarena::replay {

/// The answer to one offer.
enum class Admitted : std::uint8_t { yes, later, failed };

/// Decides about requests and secures their blocks.
class Admission {
 public:
  Admission(const ReplayOptions& options, EnginePool& pool, PreemptedSequences& kept);

  /// Returns why this pool and these limits can never serve a request, or "".
  std::string reason_never(const TraceRequest& request) const;

  /// Offers a job. The job gets a sequence and secured blocks, or must wait. The sequence has the
  /// tokens that the job kept; most jobs kept none. `first_chunk` is the number of tokens of the
  /// job's first step. `pending_blocks` is the number of blocks that running sequences take in the
  /// same step. After `failed`, failure() has the cause.
  Admitted offer(Job& job, std::int64_t first_chunk, std::int64_t pending_blocks);
  /// Undoes an offer whose first chunk did not fit. The job then has no tokens.
  Status withdraw(Job& job);
  /// Gives `child`, just forked from `parent`, the blocks that were secured for it.
  void pass_on(const Job& parent, const Job& child);
  /// Returns the tokens that other jobs lost to offers.
  std::int64_t lost_tokens() const noexcept { return lost_tokens_; }
  /// Returns the Status that made offer() fail.
  Status failure() const noexcept { return failure_; }

  /// Returns the blocks that a job's growth by `tokens` takes from the free blocks that are not
  /// promised.
  std::int64_t growth_blocks(const Job& job, std::int64_t tokens) const noexcept;

 private:
  std::int64_t secured_blocks(std::int64_t final_length,
                              std::int64_t prefill_length) const noexcept;
  std::int64_t fork_blocks(const TraceRequest& request, std::int32_t to_fork) const noexcept;
  Status secure(const Job& job, std::int64_t fork_blocks);
  Admitted make_room(const Job& job, std::int64_t blocks);

  Reserve reserve_;
  std::int64_t block_size_;
  std::int64_t max_context_;
  std::int32_t samples_;
  EnginePool& pool_;
  PreemptedSequences& kept_;
  std::int64_t lost_tokens_ = 0;
  Status failure_;
};

}  // namespace kvarena::replay
