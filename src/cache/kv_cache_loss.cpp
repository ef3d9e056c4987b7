// Steps of a KvCache that the device did not take.

#include "base/log_internal.hpp"
#include "cache/kv_cache_impl.hpp"

#include <algorithm>

namespace kvarena {

/// Keeps what is needed when the step has ended, or was lost.
void KvCache::Impl::note_rows(std::span<const AppendDemand> demands, const AppendResult& appended) {
  if (told) told->note(demands, appended);
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
  distrust_prefixes();
  log_line(LogLevel::error, "steps lost{}: {}", OfObject{options.name}, describe_loss(status));
  return status;
}

}  // namespace kvarena
