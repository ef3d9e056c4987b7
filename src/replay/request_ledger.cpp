#include "replay/request_ledger.hpp"

#include <algorithm>
#include <numeric>

namespace kvarena::replay {
namespace {

// Nearest rank: the smallest value with at least `percent` of the values at or below it.
std::int64_t percentile(const std::vector<std::int64_t>& sorted, std::size_t percent) {
  const std::size_t rank = (sorted.size() * percent + 99) / 100;
  return sorted[rank == 0 ? 0 : rank - 1];
}

DurationSummary summarise(std::vector<std::int64_t>& durations_us) {
  DurationSummary summary;
  if (durations_us.empty()) return summary;
  std::sort(durations_us.begin(), durations_us.end());
  const double sum = std::accumulate(durations_us.begin(), durations_us.end(), 0.0);
  summary.count = static_cast<std::int64_t>(durations_us.size());
  summary.mean_us = sum / static_cast<double>(durations_us.size());
  summary.p50_us = percentile(durations_us, 50);
  summary.p90_us = percentile(durations_us, 90);
  summary.p99_us = percentile(durations_us, 99);
  summary.max_us = durations_us.back();
  return summary;
}

}  // namespace

void RequestLedger::write_to(ReplayReport& report) {
  report.completed = completed();
  report.rejected = rejected_;
  report.final_tokens = final_tokens_;
  report.final_blocks = final_blocks_;
  const std::int64_t slots = final_blocks_ * report.block_size;
  report.waste =
      slots == 0 ? 0.0 : 1.0 - static_cast<double>(final_tokens_) / static_cast<double>(slots);
  report.queueing = summarise(queueing_us_);
  report.latency = summarise(latency_us_);
}

}  // namespace kvarena::replay
