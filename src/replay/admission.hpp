#pragma once

/// @file
/// `Job`: what an engine schedules. `PreemptedSequences`: the blocks that preempted sequences keep.
/// `Admission`: decides which request may run, first come, first served. The caller offers the head
/// of its queue and stops at the first request that must wait. Admission secures blocks as
/// `Reserve` says, and leaves the manager's watermark free. A preempted sequence returns only when
/// all its lost tokens fit, because it would otherwise be preempted again at once. Blocks that
/// other preempted sequences keep are freed when they are needed. One thread at a time.

#include "replay/engine_pool.hpp"
#include "replay/replay_options.hpp"
#include "trace/trace_request.hpp"
#include "verify/sequence.hpp"

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace kvarena::replay {

/// What a request's tokens are derived from.
inline std::shared_ptr<const verify::SequenceContent> content_of(
    const trace::TraceRequest& request) {
  return std::make_shared<verify::SequenceContent>(
      verify::SequenceContent{.owner = request.index,
                              .prompt_tokens = request.input_tokens,
                              .block_tokens = request.prefix_block_tokens,
                              .blocks = request.prefix_blocks,
                              .salt = request.salt});
}

/// A request under way. It is one job during its prompt. After the prompt there is one job for each
/// sample, and each is admitted, preempted and finished on its own. Plain data of the engines.
struct ActiveRequest {
  std::shared_ptr<const trace::TraceRequest> trace;
  std::shared_ptr<const verify::SequenceContent> content;  ///< null with attention off
  std::int32_t unfinished = 1;  ///< sequences that have not reached their final length
  bool started = false;         ///< was admitted once

  /// Prompt and output.
  std::int64_t final_length() const noexcept { return trace->input_tokens + trace->output_tokens; }
};

/// One sequence of a request, waiting or running. It must prefill its prompt and the lost part of
/// its output.
struct Job : verify::WrittenSequence {
  std::shared_ptr<ActiveRequest> request;
  std::int64_t cached = 0;   ///< tokens that its sequence had from a prefix cache
  std::int32_t to_fork = 0;  ///< sequences still to fork off after the prompt
  bool preempted = false;    ///< lost its blocks at least once

  /// Moves the stream, if there is one, to the end of the tokens in the tables. O(length).
  void rewind_stream() {
    if (request->content == nullptr) return;
    stream = stream.from_start();
    while (stream.position() < length) static_cast<void>(stream.next());
  }
  /// Appends the ids of tokens of the sequence, for a prefix cache.
  void append_tokens(std::int64_t first, std::int64_t count,
                     std::vector<std::int32_t>& tokens) const {
    for (std::int64_t i = first; i < first + count; ++i) tokens.push_back(stream.token(i));
  }
  bool is_finished() const noexcept { return length == request->final_length(); }
};

/// The blocks that preempted sequences keep until another sequence needs them. The sequence that
/// was preempted first loses its blocks first, from its end. Kept blocks count as free, so they
/// never make an admission or growth fail. Borrows pool and jobs.
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

  std::int64_t blocks() const noexcept { return blocks_; }
  /// Returns the tokens in all kept blocks, which are full.
  std::int64_t tokens() const noexcept { return blocks_ * pool_.block_size(); }
  std::int64_t blocks_of(const Job& job) const noexcept {
    return job.sequence == kNoSequence ? 0 : job.length / pool_.block_size();
  }

 private:
  Status cut(Job& job, std::int64_t blocks);

  EnginePool& pool_;
  std::deque<Job*> jobs_;  // preempted first, first
  std::int64_t blocks_ = 0;
};

/// The answer to one offer.
enum class Admitted : std::uint8_t { yes, later, failed };

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
  Status failure() const noexcept { return failure_; }

  /// Returns the blocks or pages that a job's growth by `tokens` takes from the free blocks that
  /// are not promised.
  std::int64_t growth_blocks(const Job& job, std::int64_t tokens) const noexcept;

 private:
  std::int64_t secured_blocks(std::int64_t final_length,
                              std::int64_t prefill_length) const noexcept;
  std::int64_t fork_blocks(const TraceRequest& request, std::int32_t to_fork) const noexcept;
  Status secure(const Job& job, std::int64_t fork_blocks);
  Status open_sequence(Job& job);
  Admitted make_room(const Job& job, std::int64_t blocks);

  Reserve reserve_;
  std::int64_t block_size_;
  std::int64_t max_context_;
  std::int32_t samples_;
  EnginePool& pool_;
  PreemptedSequences& kept_;
  std::int64_t lost_tokens_ = 0;
  std::vector<std::int32_t> tokens_;  // of the job that is offered
  Status failure_;
};

}  // namespace kvarena::replay
