#pragma once

/// @file
/// The receivers of an engine's reports while it runs: occupancy, the ledger, progress, an observer
/// and, with attention on, the verifier of KV. run_replay owns them, the engines borrow them.

#include "replay/occupancy.hpp"
#include "replay/request_ledger.hpp"

#include "kvarena/blocktable/block_tables.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace kvarena {
class StepPublisher;
}

namespace kvarena::verify {
class KvVerifier;
}

namespace kvarena::replay {

class EnginePool;
struct Job;

/// The progress of a replay.
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
  /// Receives the present progress.
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

  /// Before the sequences of a step grow.
  virtual void before_append(EnginePool&, std::span<const AppendDemand>) {}
  /// After they grew, before K and V are written.
  virtual void after_append(EnginePool&) {}
  /// Between steps.
  virtual void between_steps(EnginePool&, std::span<const std::unique_ptr<Job>>) {}
  /// Before a finished sequence is destroyed.
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
};

/// All of it.
struct Instruments {
  OccupancyMeter meter;
  RequestLedger ledger;
  EngineCounters counters;
  ReplayProgress progress;
  ProgressSink* sink = nullptr;            ///< may be null
  ReplayObserver* observer = nullptr;      ///< may be null
  verify::KvVerifier* verifier = nullptr;  ///< null with attention off

  /// Passes the progress on.
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
