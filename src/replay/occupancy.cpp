#include "replay/occupancy.hpp"

#include <fmt/ostream.h>

#include <algorithm>

namespace kvarena::replay {

void OccupancyMeter::write_timeline(std::ostream& out, std::int64_t interval_ns,
                                    std::int32_t block_size) {
  timeline_ = &out;
  interval_ns_ = interval_ns;
  block_size_ = block_size;
  out << "time_s,running,waiting,blocks,tokens,waste,preemptions,completed\n";
}

void OccupancyMeter::write_row(std::int64_t at_ns) {
  const std::int64_t slots = state_.blocks * block_size_;
  const double waste =
      slots == 0 ? 0.0 : 1.0 - static_cast<double>(state_.tokens) / static_cast<double>(slots);
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
}

void OccupancyMeter::finish(std::int64_t now_ns) {
  record(now_ns, state_);
  if (timeline_ != nullptr) write_row(now_ns_ - first_ns_);
}

double OccupancyMeter::time_mean_blocks() const noexcept {
  const std::int64_t elapsed = elapsed_ns();
  return elapsed == 0 ? 0.0 : static_cast<double>(block_ns_) / static_cast<double>(elapsed);
}

}  // namespace kvarena::replay
