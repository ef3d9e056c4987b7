#pragma once

/// @file
/// `run_replay`: plays a request trace through the block manager and block tables, and with
/// attention on through a KvCache with real bytes, on a virtual clock. Prints nothing.
/// Deterministic.

#include "replay/instruments.hpp"
#include "replay/replay_options.hpp"
#include "replay/replay_report.hpp"

namespace kvarena::replay {

/// Replays the trace and proves the accounts. The trace must be a file when the pool has no size or
/// attention is on, because it is then read twice: the first pass finds the trace's size and worst
/// case. `sink` and `observer` may be null. The outcome has a report when the replay has begun,
/// also after a failed check.
ReplayOutcome run_replay(const ReplayOptions& options, ProgressSink* sink = nullptr,
                         ReplayObserver* observer = nullptr);

}  // namespace kvarena::replay
