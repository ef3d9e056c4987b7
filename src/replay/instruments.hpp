#pragma once

/// @file
/// The receivers of an engine's reports while it runs: occupancy, the ledger, progress, an observer
/// and, with attention on, the verifier of KV. run_replay owns them, the engines borrow them. One
/// thread at a time.

#include "replay/group_meter.hpp"
#include "replay/replay_report.hpp"
#include "trace/trace_request.hpp"

#include "kvarena/blocktable/block_tables.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

namespace kvarena {
class StepPublisher;
}

namespace kvarena::verify {
class StepVerifier;
}

namespace kvarena::replay {

class EnginePool;
struct Job;

/// The state of the engine at one instant.
struct EngineState {
  std::int64_t blocks = 0;       ///< blocks in use, without blocks that preempted sequences keep;
                                 ///< with groups pages
  std::int64_t running = 0;      ///< sequences
  std::int64_t waiting = 0;      ///< requests, preempted sequences included
  std::int64_t tokens = 0;       ///< in those blocks
  std::int64_t preemptions = 0;  ///< so far
  std::int64_t completed = 0;    ///< requests, so far
  PageUse pages{};               ///< with groups, else zero
  friend bool operator==(const EngineState&, const EngineState&) = default;
};

/// Occupancy over virtual time: the time-weighted mean and peak, and the series as CSV. The numbers
/// come from the block manager; this class only weights them by time.
class OccupancyMeter {
 public:
  /// Makes an integrator that also writes a row to `out` for every `interval_ns` of virtual time in
  /// which something changed.
  void write_timeline(std::ostream& out, std::int64_t interval_ns, std::int32_t block_size);

  /// Records that the state is `state` from `now_ns` on. Times must not fall.
  void record(std::int64_t now_ns, const EngineState& state);
  void finish(std::int64_t now_ns);

  /// Mean number of blocks from the first record to the latest; 0 when no time has passed.
  double time_mean_blocks() const noexcept;
  /// The most blocks in use at a time.
  std::int64_t peak_blocks() const noexcept { return peak_blocks_; }
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
  std::int64_t peak_blocks_ = 0;
  std::ostream* timeline_ = nullptr;
  std::int64_t interval_ns_ = 0;
  std::int64_t next_row_ns_ = 0;
  std::int32_t block_size_ = 1;
};

/// Counts requests and sequences and their waiting. Times are virtual nanoseconds.
class RequestLedger {
 public:
  /// From the first request on, keeps what write_times writes.
  void keep_times() noexcept { keeps_times_ = true; }

  /// Records that a request was read. Requests come in the order of their indices.
  void arrive(const trace::TraceRequest& request);
  /// Records that the request can never be served.
  void reject(const trace::TraceRequest& request, const std::string& why);
  /// Records that the request was admitted. Only the first time counts.
  void start(const trace::TraceRequest& request, std::int64_t now_ns);
  /// Records that the prompt has been computed. Only the first time counts.
  void compute_prompt(const trace::TraceRequest& request, std::int64_t now_ns);
  /// Records that one sequence reached its final length, in `blocks` blocks.
  void finish_sequence(std::int64_t tokens, std::int64_t blocks) {
    final_tokens_ += tokens;
    final_blocks_ += blocks;
  }
  /// Records that all sequences of a request have finished.
  void finish_request(const trace::TraceRequest& request, std::int64_t now_ns);

  std::int64_t completed() const noexcept { return static_cast<std::int64_t>(latency_us_.size()); }
  std::int64_t rejected() const noexcept { return rejected_; }

  /// Puts the figures into `report`, whose block_size is set. O(n log n).
  void write_to(ReplayReport& report);
  /// Writes when each request was served, as CSV.
  void write_times(std::ostream& out) const;

 private:
  static constexpr std::int64_t kNever = -1;
  struct Times {
    std::int64_t arrival_ns = 0;
    std::int64_t started_ns = kNever;
    std::int64_t prompt_ns = kNever;
    std::int64_t finished_ns = kNever;
  };
  void set(const trace::TraceRequest& request, std::int64_t Times::*time, std::int64_t now_ns);

  bool keeps_times_ = false;
  std::vector<Times> times_;
  std::int64_t rejected_ = 0;
  std::string first_rejection_;
  std::int64_t final_tokens_ = 0;
  std::int64_t final_blocks_ = 0;
  std::vector<std::int64_t> queueing_us_;
  std::vector<std::int64_t> latency_us_;
};

struct ReplayProgress {
  std::int64_t requests_done = 0;   ///< completed or rejected
  std::int64_t requests_total = 0;  ///< 0: unknown
  std::int64_t tokens_done = 0;     ///< computed, recomputed ones included
  std::int64_t tokens_total = 0;    ///< without recomputation; 0: unknown
  std::int64_t virtual_us = 0;      ///< virtual time
  std::int64_t waiting = 0;         ///< requests, preempted sequences included
  std::int64_t preemptions = 0;     ///< so far
};

/// Receives progress. It is called very often and must limit its own work.
class ProgressSink {
 public:
  virtual ~ProgressSink() = default;
  virtual void on_progress(const ReplayProgress& progress) = 0;
};

/// Observes a replay's pool. The replay's thread calls it. An exception ends the replay, except one
/// from on_end.
class ReplayObserver : public ProgressSink {
 public:
  /// All memory of the run is allocated. `publisher` is valid until the pool given to on_end is
  /// destroyed.
  virtual void on_pool(StepPublisher& publisher) = 0;
  /// The replay has ended, well or not, and no longer uses the pool. A replay that failed before
  /// on_pool may have a pool too.
  virtual void on_end(std::unique_ptr<EnginePool> pool) noexcept = 0;

  virtual void before_append(EnginePool&, std::span<const AppendDemand>) {}
  /// After they grew, before K and V are written.
  virtual void after_append(EnginePool&) {}
  virtual void between_steps(EnginePool&, std::span<const std::unique_ptr<Job>>) {}
  virtual void before_destroy(EnginePool&, const Job&) {}
};

/// Counters that only engines know.
struct EngineCounters {
  std::int64_t steps = 0;
  std::int64_t prefill_tokens = 0;
  std::int64_t decode_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t recomputed_tokens = 0;
  std::int64_t forks = 0;
  std::int64_t cached_tokens = 0;
};

struct Instruments {
  OccupancyMeter meter;
  RequestLedger ledger;
  EngineCounters counters;
  ReplayProgress progress;
  ProgressSink* sink = nullptr;              ///< may be null
  ReplayObserver* observer = nullptr;        ///< may be null
  verify::StepVerifier* verifier = nullptr;  ///< null with attention off
  std::optional<GroupMeter> groups;          ///< of a pool with groups

  /// Returns the pages in use now; zeros without groups.
  PageUse page_use(std::int64_t now_ns, const BlockManager& manager) {
    return groups ? groups->record(now_ns, manager) : PageUse{};
  }
  void report_progress(std::int64_t now_ns, std::size_t waiting) {
    if (sink == nullptr && observer == nullptr) return;
    progress.requests_done = ledger.completed() + ledger.rejected();
    progress.tokens_done = counters.prefill_tokens + counters.decode_tokens;
    progress.virtual_us = now_ns / 1000;
    progress.waiting = static_cast<std::int64_t>(waiting);
    progress.preemptions = counters.preemptions;
    if (sink != nullptr) sink->on_progress(progress);
    if (observer != nullptr) observer->on_progress(progress);
  }
};

}  // namespace kvarena::replay
