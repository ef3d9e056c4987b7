#pragma once

/// @file
/// `Admission`: which request may run. First come, first served: the caller offers the head of its
/// queue and stops at the first that has to wait. Secures blocks as `Reserve` says, under the
/// manager's watermark; a sequence that was preempted comes back only when all that it lost fits,
/// or it would be thrown out again at once. What others keep gives way. One thread at a time.

#include "replay/engine_pool.hpp"
#include "replay/job.hpp"
#include "replay/preempted_sequences.hpp"
#include "replay/replay_options.hpp"

#include <cstdint>
#include <string>

namespace kvarena::replay {

/// The answer to one offer.
enum class Admitted : std::uint8_t { yes, later, failed };

/// Decides and secures.
class Admission {
 public:
  Admission(const ReplayOptions& options, EnginePool& pool, PreemptedSequences& kept);

  /// Why a request can never be served by this pool and these limits, or "".
  std::string reason_never(const TraceRequest& request) const;

  /// Offers a job, which becomes a sequence of what it kept, empty for most, with its blocks
  /// secured, or has to wait. `first_chunk` are the tokens it would start with, `pending_blocks`
  /// what the running sequences take in the same step. `failed` leaves the cause in failure().
  Admitted offer(Job& job, std::int64_t first_chunk, std::int64_t pending_blocks);
  /// Undoes an offer whose first chunk did not fit after all; the job has no tokens any more.
  Status withdraw(Job& job);
  /// Hands what was secured for sequences to fork over to `child`, just forked from `parent`.
  void pass_on(const Job& parent, const Job& child);
  /// Tokens that others lost to offers.
  std::int64_t lost_tokens() const noexcept { return lost_tokens_; }
  /// The Status that made offer() fail.
  Status failure() const noexcept { return failure_; }

  /// Blocks that a job's growth by `tokens` takes from those nobody has promised or taken.
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
