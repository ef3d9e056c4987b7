#include "replay/admission.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace kvarena::replay {

// ---- preempted sequences ------------------------------------------------------------------------

// A sequence of no blocks would hold a seat for nothing.
Status PreemptedSequences::cut(Job& job, std::int64_t blocks) {
  job.length = blocks * pool_.block_size();
  if (blocks > 0) return pool_.truncate(job.sequence, job.length);
  const Status status = pool_.destroy(job.sequence);
  job.sequence = kNoSequence;
  return status;
}

Status PreemptedSequences::keep(Job& job) {
  const std::int64_t computed = std::min(job.length, job.prefill_length - 1);
  const std::int64_t blocks = computed / pool_.block_size();
  if (Status status = cut(job, blocks); !status) return status;
  if (blocks == 0) return {};
  // What was promised for the rest of a prompt is promised no longer.
  if (Status status = pool_.promise_capacity(job.sequence, job.length); !status) return status;
  jobs_.push_back(&job);
  blocks_ += blocks;
  return {};
}

void PreemptedSequences::forget(const Job& job) {
  const auto found = std::find(jobs_.begin(), jobs_.end(), &job);
  if (found == jobs_.end()) return;
  jobs_.erase(found);
  blocks_ -= blocks_of(job);
}

Result<std::int64_t> PreemptedSequences::reclaim(std::int64_t blocks, const Job* spared,
                                                 std::int64_t* lost_tokens) {
  std::int64_t freed = 0;
  for (Job* job : jobs_) {
    if (freed >= blocks) break;
    if (job == spared) continue;
    const std::int64_t held = blocks_of(*job);
    const std::int64_t taken = std::min(held, blocks - freed);
    if (Status status = cut(*job, held - taken); !status) return status;
    *lost_tokens += taken * pool_.block_size();
    freed += taken;
    blocks_ -= taken;
  }
  std::erase_if(jobs_, [](const Job* job) { return job->sequence == kNoSequence; });
  return freed;
}

// ---- admission ----------------------------------------------------------------------------------

Admission::Admission(const ReplayOptions& options, EnginePool& pool, PreemptedSequences& kept)
    : reserve_(options.reserve),
      block_size_(pool.block_size()),
      max_context_(options.limits.max_context_tokens),
      samples_(options.samples),
      pool_(pool),
      kept_(kept) {}

std::string Admission::reason_never(const TraceRequest& request) const {
  const std::int64_t length = request.input_tokens + request.output_tokens;
  if (max_context_ > 0 && length > max_context_) {
    return fmt::format("{} tokens, past the context of {}", length, max_context_);
  }
  const PageStats stats = pool_.unit_stats();
  const std::int64_t final_blocks = pool_.units().of_length(length);
  const char* const unit = pool_.units().name();
  if (final_blocks > stats.num_pages) {
    return fmt::format("{} {}s at its final length, of {} in the pool", final_blocks, unit,
                       stats.num_pages);
  }
  // A sequence that was preempted late comes back with all its tokens to prefill.
  const std::int64_t forks = fork_blocks(request, request.output_tokens > 0 ? samples_ - 1 : 0);
  const std::int64_t needed = secured_blocks(length, length) + forks;
  if (needed <= stats.num_pages - stats.watermark) return {};
  return fmt::format("{} {}s to be admitted, of {} in the pool less a watermark of {}", needed,
                     unit, stats.num_pages, stats.watermark);
}

std::int64_t Admission::secured_blocks(std::int64_t final_length,
                                       std::int64_t prefill_length) const noexcept {
  return pool_.units().of_length(reserve_ == Reserve::full ? final_length : prefill_length);
}

// With everything reserved, sequences that fork off later need their outputs' blocks too, and one
// more for whoever first writes to the shared last block.
std::int64_t Admission::fork_blocks(const TraceRequest& request,
                                    std::int32_t to_fork) const noexcept {
  if (reserve_ != Reserve::full || to_fork == 0) return 0;
  const std::int64_t final_length = request.input_tokens + request.output_tokens;
  const std::int64_t shared = request.input_tokens / block_size_;
  return to_fork * (blocks_for(final_length, block_size_) - shared) + 1;
}

std::int64_t Admission::growth_blocks(const Job& job, std::int64_t tokens) const noexcept {
  if (reserve_ == Reserve::full) return 0;
  if (reserve_ == Reserve::prompt && !job.decodes()) return 0;
  return pool_.units().of_length(job.length + tokens) - pool_.units().of_length(job.length);
}

Status Admission::secure(const Job& job, std::int64_t fork_blocks) {
  const std::int64_t final_length = job.request->final_length();
  if (reserve_ == Reserve::prompt) return pool_.promise_capacity(job.sequence, job.prefill_length);
  if (reserve_ == Reserve::none) return {};
  Status status = pool_.reserve_capacity(job.sequence, final_length);
  if (!status || fork_blocks == 0) return status;
  const std::int64_t own = blocks_for(final_length, block_size_);
  return pool_.promise_capacity(job.sequence, (own + fork_blocks) * block_size_);
}

// Room for `blocks` and what the job still has, at the cost of others that only keep theirs.
Admitted Admission::make_room(const Job& job, std::int64_t blocks) {
  const std::int64_t own = kept_.blocks_of(job);
  const PageStats stats = pool_.unit_stats();
  const std::int64_t usable = stats.available() - stats.reserved - stats.watermark;
  const std::int64_t missing = blocks - own - usable;
  if (missing <= 0) return Admitted::yes;
  if (missing > kept_.blocks() - own) return Admitted::later;
  const auto freed = kept_.reclaim(missing, &job, &lost_tokens_);
  if (freed) return Admitted::yes;
  failure_ = freed.status();
  return Admitted::failed;
}

/// Makes the job's sequence, with what a prefix cache has of its tokens.
Status Admission::open_sequence(Job& job) {
  tokens_.clear();
  if (pool_.has_prefix_cache()) job.append_tokens(0, job.prefill_length, tokens_);
  const trace::TraceRequest& request = *job.request->trace;
  const auto sequence =
      pool_.create_sequence(static_cast<std::uint64_t>(request.index), request.salt, tokens_);
  if (!sequence) return sequence.status();
  job.sequence = *sequence;
  if (!pool_.has_prefix_cache()) return {};
  const auto found = pool_.tables().prefix_of(job.sequence);
  if (!found) return found.status();
  job.length = found->tokens;
  job.cached = found->tokens;
  return {};
}

Admitted Admission::offer(Job& job, std::int64_t first_chunk, std::int64_t pending_blocks) {
  const std::int64_t forks = fork_blocks(*job.request->trace, job.to_fork);
  const bool first_chunk_only = reserve_ == Reserve::none && !job.preempted;
  const std::int64_t prefill = first_chunk_only ? first_chunk : job.prefill_length;
  const std::int64_t needed = secured_blocks(job.request->final_length(), prefill) + forks;
  const Admitted room = make_room(job, needed + pending_blocks);
  if (room != Admitted::yes) return room;
  kept_.forget(job);
  if (job.sequence == kNoSequence) {
    failure_ = open_sequence(job);
    if (!failure_) {
      return failure_.code == StatusCode::exhausted ? Admitted::later : Admitted::failed;
    }
  }
  failure_ = secure(job, forks);
  if (failure_) return Admitted::yes;
  const bool full = failure_.code == StatusCode::exhausted;
  const Status undone = withdraw(job);
  if (full && undone) return Admitted::later;
  if (!undone) failure_ = undone;
  return Admitted::failed;
}

Status Admission::withdraw(Job& job) {
  const Status status = pool_.destroy(job.sequence);
  job.sequence = kNoSequence;
  job.length = 0;
  job.cached = 0;
  return status;
}

void Admission::pass_on(const Job& parent, const Job& child) {
  if (reserve_ != Reserve::full) return;
  // The parent's promise ends with its last child. A child that gets nothing grows block by block.
  const std::int64_t own = blocks_for(parent.request->final_length(), block_size_);
  const std::int64_t left = fork_blocks(*parent.request->trace, parent.to_fork);
  static_cast<void>(pool_.promise_capacity(parent.sequence, (own + left) * block_size_));
  static_cast<void>(pool_.reserve_capacity(child.sequence, child.request->final_length()));
}

}  // namespace kvarena::replay
