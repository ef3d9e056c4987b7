// Steps of a KvCache that the device did not take, or whose work has failed.

#include "base/log_internal.hpp"
#include "cache/kv_cache_impl.hpp"

#include <algorithm>

namespace kvarena {

/// The step writes the new tokens, and the older ones of a last block that it copies. With
/// DuplicateRule::share its end may give a block that it fills up for one of an earlier step.
void KvCache::Impl::note_tokens(std::span<const AppendDemand> demands,
                                const AppendResult& appended) noexcept {
  const std::int64_t size = options.layout.block_size_tokens;
  const bool may_share = options.prefix_cache.duplicates == DuplicateRule::share;
  const std::span<const BlockCopy> copies = appended.copies;
  for (std::size_t i = 0; i < demands.size(); ++i) {
    if (demands[i].num_tokens == 0) continue;
    const SequenceId id = demands[i].sequence;
    const std::int64_t after = appended.rows[i].length_tokens;
    const std::int64_t before = after - demands[i].num_tokens;
    bool is_whole = may_share && after / size > before / size;
    if (arena.groups() != nullptr) {  // copies have the ids of their tables: each may be its own
      is_whole = is_whole || !copies.empty();
    } else if (!copies.empty() && before % size != 0) {
      const BlockId block = tables->lookup(id, before / size).value();
      is_whole = is_whole || std::any_of(copies.begin(), copies.end(),
                                         [&](const BlockCopy& c) { return c.target == block; });
    }
    in_flight->note(id, is_whole ? before - before % size : before, step);
  }
}

/// Keeps what is needed when the step has ended, or was lost.
void KvCache::Impl::note_rows(std::span<const AppendDemand> demands, const AppendResult& appended) {
  if (encoders) encoders->begin_batch(demands);
  if (told) {
    told->note(demands, appended);
    note_tokens(demands, appended);
  }
  if (watches_failures()) failures_before = failures_taken();
  if (rows_of_steps.empty()) return;
  std::vector<WrittenStates>& rows = rows_of_steps[slot_index()];
  for (const AppendDemand& demand : demands) {
    const std::int64_t length = tables->info(demand.sequence)->length_tokens;
    rows.push_back({demand.sequence, length - demand.num_tokens});
  }
}

/// Sequences that have ended since are not found.
void KvCache::Impl::lose_states(std::uint64_t first) noexcept {
  for (std::uint64_t lost = first; lost < step && !rows_of_steps.empty(); ++lost) {
    for (const WrittenStates& row : rows_of_steps[ring->index_of(lost)]) {
      static_cast<void>(tables->lose_states(row.sequence, row.length_before));
    }
  }
}

// The device takes steps in order, so every step behind a lost one is lost too. No step is active
// here.
Status KvCache::Impl::check_taken(std::uint64_t last) {
  const std::uint64_t taken = backend->taken_serial();
  const std::uint64_t k = serials.size();
  std::uint64_t first = step >= k ? step - k : 0;
  while (first <= last && serials[ring->index_of(first)] <= taken) ++first;
  if (first > last) return {};
  static_cast<void>(device->synchronize(stream));  // its failure matters less than the lost steps
  const Status status = steps_lost(first, step - 1);
  num_steps_lost += step - first;
  std::fill(serials.begin(), serials.end(), 0);
  backend->resync(*tables);
  lose_states(first);
  if (encoders) encoders->forget_since(first);
  distrust(first);
  log_line(LogLevel::error, "steps lost{}: {}", OfObject{options.name}, describe_loss(status));
  return status;
}

/// A stream that does not exist any more has another number.
std::uint64_t KvCache::Impl::failures_taken() const noexcept {
  const Result<std::uint64_t> taken = device->failures_taken(stream);
  return taken ? *taken : UINT64_MAX;
}

/// The stream skips work behind a failure. An event behind it says so, unless somebody has taken
/// the failure between the step's append and its end.
std::uint64_t KvCache::Impl::find_lost_step(std::uint64_t num_marked) noexcept {
  const bool is_revived = has_work() && looked_at <= step && failures_taken() != failures_before;
  const std::uint64_t k = ring->size();
  looked_at = std::max(looked_at, num_marked > k ? num_marked - k : 0);
  for (; looked_at < num_marked; ++looked_at) {
    const Result<bool> complete = ring->is_complete(ring->index_of(looked_at));
    if (!complete) return looked_at;
    if (!*complete) break;
  }
  return is_revived ? step : kNoStep;
}

/// A look between two records would end the capture of a graph.
void KvCache::Impl::notice_lost_steps(std::uint64_t num_marked) noexcept {
  if (!watches_failures() || phase == StepPhase::recording) return;
  const std::uint64_t first = find_lost_step(num_marked);
  if (first == kNoStep) return;
  distrust(first);
  if (told) {
    log_line(LogLevel::error,
             "the work of step {}{} has failed: the prefix cache has forgotten all blocks", first,
             OfObject{options.name});
  } else {
    log_line(LogLevel::error, "the work of step {}{} has failed: recycled blocks are cleared again",
             first, OfObject{options.name});
  }
}

/// Nobody knows which of the published blocks were written. A sequence keeps what it knows behind
/// them when that is before the doubt, and knows nothing when blocks before it are forgotten. What
/// is lost is not looked for again.
void KvCache::Impl::distrust(std::uint64_t first) noexcept {
  if (!watches_failures()) return;
  if (scrubs) scrubs->distrust();
  if (told) {
    if (first != kNoStep) in_flight->distrust(*tables, first);
    static_cast<void>(tables->forget_all());
    if (first != kNoStep) in_flight->distrust(*tables, first);
  }
  looked_at = has_work() ? step + 1 : step;
}

}  // namespace kvarena
