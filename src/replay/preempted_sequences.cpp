#include "replay/preempted_sequences.hpp"

#include <algorithm>

namespace kvarena::replay {

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

}  // namespace kvarena::replay
