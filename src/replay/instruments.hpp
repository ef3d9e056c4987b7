#pragma once

/// @file
/// What an engine reports to while it runs: occupancy, the ledger, progress, and with attention on
/// the writer and verifier of KV. Borrowed by the engines, owned by run_replay.

#include "replay/occupancy.hpp"
#include "replay/request_ledger.hpp"
#include "replay/request_times.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena::verify {
class KvVerifier;
}

namespace kvarena::replay {

class FaultPlanter;

/// How far a replay is.
struct ReplayProgress {
  std::int64_t requests_done = 0;   ///< completed or rejected
  std::int64_t requests_total = 0;  ///< 0: unknown
  std::int64_t tokens_done = 0;     ///< computed, recomputed ones included
  std::int64_t tokens_total = 0;    ///< without recomputation; 0: unknown
  std::int64_t virtual_us = 0;      ///< virtual time
  std::int64_t waiting = 0;         ///< requests, preempted sequences included
  std::int64_t preemptions = 0;     ///< so far
};

/// Receives progress. Called very often: it limits itself.
class ProgressSink {
 public:
  virtual ~ProgressSink() = default;
  /// The replay has come this far.
  virtual void on_progress(const ReplayProgress& progress) = 0;
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
  RequestTimes times;
  EngineCounters counters;
  ReplayProgress progress;
  ProgressSink* sink = nullptr;            ///< may be null
  ProgressSink* observer = nullptr;        ///< may be null
  verify::KvVerifier* verifier = nullptr;  ///< null with attention off
  FaultPlanter* faults = nullptr;          ///< null unless a fault is planted

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
