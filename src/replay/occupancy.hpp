#pragma once

/// @file
/// Occupancy over virtual time: the time-weighted mean and peak, and the series as CSV. The numbers
/// come from the block manager; this class only weights them by time. One thread at a time.

#include <cstdint>
#include <ostream>

namespace kvarena::replay {

/// The state of the engine at one instant.
struct EngineState {
  std::int64_t blocks = 0;       ///< blocks in use, without blocks that preempted sequences keep
  std::int64_t running = 0;      ///< sequences
  std::int64_t waiting = 0;      ///< requests, preempted sequences included
  std::int64_t tokens = 0;       ///< in those blocks
  std::int64_t preemptions = 0;  ///< so far
  std::int64_t completed = 0;    ///< requests, so far
  friend bool operator==(const EngineState&, const EngineState&) = default;
};

/// Integrates EngineState over time.
class OccupancyMeter {
 public:
  /// Makes an integrator that also writes a row to `out` for every `interval_ns` of virtual time in
  /// which something changed.
  void write_timeline(std::ostream& out, std::int64_t interval_ns, std::int32_t block_size);

  /// Records that the state is `state` from `now_ns` on. Times must not fall.
  void record(std::int64_t now_ns, const EngineState& state);
  /// Writes the last row.
  void finish(std::int64_t now_ns);

  /// Mean number of blocks from the first record to the latest; 0 when no time has passed.
  double time_mean_blocks() const noexcept;
  /// The most sequences that ran at a time.
  std::int64_t peak_running() const noexcept { return peak_running_; }
  /// From the first record to the latest, nanoseconds.
  std::int64_t elapsed_ns() const noexcept { return now_ns_ - first_ns_; }

 private:
  void write_rows(std::int64_t until_ns);
  void write_row(std::int64_t at_ns);

  __extension__ using Wide = __int128;

  bool started_ = false;
  std::int64_t first_ns_ = 0;
  std::int64_t now_ns_ = 0;
  EngineState state_;
  EngineState written_;
  Wide block_ns_ = 0;
  std::int64_t peak_running_ = 0;
  std::ostream* timeline_ = nullptr;
  std::int64_t interval_ns_ = 0;
  std::int64_t next_row_ns_ = 0;
  std::int32_t block_size_ = 1;
};

}  // namespace kvarena::replay
