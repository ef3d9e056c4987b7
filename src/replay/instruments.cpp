#include "replay/instruments.hpp"

#include <fmt/format.h>
#include <fmt/ostream.h>

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

// Seconds with six decimals; empty for what never happened.
std::string seconds(std::int64_t ns) {
  if (ns < 0) return {};
  return fmt::format("{}.{:06}", ns / 1'000'000'000, ns % 1'000'000'000 / 1000);
}

std::int64_t waited_us(const trace::TraceRequest& request, std::int64_t now_ns) {
  return now_ns / 1000 - request.arrival_us;
}

}  // namespace

// ---- occupancy ----------------------------------------------------------------------------------

void OccupancyMeter::write_timeline(std::ostream& out, std::int64_t interval_ns,
                                    std::int32_t block_size) {
  timeline_ = &out;
  interval_ns_ = interval_ns;
  block_size_ = block_size;
  out << "time_s,running,waiting,blocks,tokens,waste,preemptions,completed\n";
}

void OccupancyMeter::write_row(std::int64_t at_ns) {
  const std::int64_t slots = state_.blocks * block_size_;
  const double of_slots =
      slots == 0 ? 0.0 : 1.0 - static_cast<double>(state_.tokens) / static_cast<double>(slots);
  const double waste = state_.pages.pages > 0 ? state_.pages.waste() : of_slots;
  fmt::print(*timeline_, "{}.{:06},{},{},{},{},{:.6f},{},{}\n", at_ns / 1'000'000'000,
             at_ns % 1'000'000'000 / 1000, state_.running, state_.waiting, state_.blocks,
             state_.tokens, waste, state_.preemptions, state_.completed);
  written_ = state_;
}

// Rows at multiples of the interval before `until_ns`. A stretch without change has its first row
// only: the series is a step function.
void OccupancyMeter::write_rows(std::int64_t until_ns) {
  const std::int64_t elapsed = until_ns - first_ns_;
  if (next_row_ns_ >= elapsed) return;
  if (next_row_ns_ == 0 || !(state_ == written_)) write_row(next_row_ns_);
  next_row_ns_ = (elapsed + interval_ns_ - 1) / interval_ns_ * interval_ns_;
}

void OccupancyMeter::record(std::int64_t now_ns, const EngineState& state) {
  if (!started_) {
    started_ = true;
    first_ns_ = now_ns_ = now_ns;
  }
  if (timeline_ != nullptr) write_rows(now_ns);
  block_ns_ += Wide{state_.blocks} * (now_ns - now_ns_);
  now_ns_ = now_ns;
  state_ = state;
  peak_running_ = std::max(peak_running_, state.running);
  peak_blocks_ = std::max(peak_blocks_, state.blocks);
}

void OccupancyMeter::finish(std::int64_t now_ns) {
  record(now_ns, state_);
  if (timeline_ != nullptr) write_row(now_ns_ - first_ns_);
}

double OccupancyMeter::time_mean_blocks() const noexcept {
  const std::int64_t elapsed = elapsed_ns();
  return elapsed == 0 ? 0.0 : static_cast<double>(block_ns_) / static_cast<double>(elapsed);
}

// ---- requests -----------------------------------------------------------------------------------

void RequestLedger::arrive(const trace::TraceRequest& request) {
  if (keeps_times_) times_.push_back({.arrival_ns = request.arrival_us * 1000});
}

void RequestLedger::set(const trace::TraceRequest& request, std::int64_t Times::*time,
                        std::int64_t now_ns) {
  if (!keeps_times_) return;
  std::int64_t& known = times_[static_cast<std::size_t>(request.index)].*time;
  if (known == kNever) known = now_ns;
}

void RequestLedger::reject(const trace::TraceRequest& request, const std::string& why) {
  if (rejected_++ == 0) first_rejection_ = fmt::format("request {}: {}", request.index, why);
}

void RequestLedger::start(const trace::TraceRequest& request, std::int64_t now_ns) {
  queueing_us_.push_back(waited_us(request, now_ns));
  set(request, &Times::started_ns, now_ns);
}

void RequestLedger::compute_prompt(const trace::TraceRequest& request, std::int64_t now_ns) {
  set(request, &Times::prompt_ns, now_ns);
}

void RequestLedger::finish_request(const trace::TraceRequest& request, std::int64_t now_ns) {
  latency_us_.push_back(waited_us(request, now_ns));
  set(request, &Times::finished_ns, now_ns);
}

void RequestLedger::write_times(std::ostream& out) const {
  out << "request,arrival_s,started_s,prompt_s,finished_s\n";
  for (std::size_t i = 0; i < times_.size(); ++i) {
    const Times& times = times_[i];
    fmt::print(out, "{},{},{},{},{}\n", i, seconds(times.arrival_ns), seconds(times.started_ns),
               seconds(times.prompt_ns), seconds(times.finished_ns));
  }
}

void RequestLedger::write_to(ReplayReport& report) {
  report.completed = completed();
  report.rejected = rejected_;
  report.first_rejection = first_rejection_;
  report.final_tokens = final_tokens_;
  report.final_blocks = final_blocks_;
  const std::int64_t slots = final_blocks_ * report.block_size;
  report.waste =
      slots == 0 ? 0.0 : 1.0 - static_cast<double>(final_tokens_) / static_cast<double>(slots);
  report.queueing = summarise(queueing_us_);
  report.latency = summarise(latency_us_);
}

}  // namespace kvarena::replay
