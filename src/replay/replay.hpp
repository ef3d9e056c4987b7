#pragma once

/// @file
/// `run_replay`: plays a request trace through the block manager and block tables, and with
/// attention on through a KvCache with real bytes, on a virtual clock. Prints nothing.
/// Deterministic.

#include "replay/instruments.hpp"
#include "replay/replay_options.hpp"
#include "replay/replay_report.hpp"

namespace kvarena::replay {

/// Replays the trace and proves the accounts. A trace without a size of the pool, or with attention
/// on, is a file, which is read twice: once to know its size and worst case. `sink` and `observer`
/// may be null. The outcome has a report as soon as the replay began, also when a check failed.
ReplayOutcome run_replay(const ReplayOptions& options, ProgressSink* sink = nullptr,
                         ReplayObserver* observer = nullptr);

}  // namespace kvarena::replay
