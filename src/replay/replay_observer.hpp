#pragma once

/// @file
/// `ReplayObserver`: sees a replay's pool from outside, for as long as it likes.

#include "replay/instruments.hpp"

#include <memory>

namespace kvarena {
class StepPublisher;
}

namespace kvarena::replay {

class EnginePool;

/// Told by the replay's thread. What on_pool and on_progress throw ends the replay.
class ReplayObserver : public ProgressSink {
 public:
  /// All memory of the run is there; `publisher` is valid until the pool of on_end goes.
  virtual void on_pool(StepPublisher& publisher) = 0;
  /// The replay has ended, however it did: nobody else uses the pool any more. A replay that failed
  /// before on_pool may have a pool too.
  virtual void on_end(std::unique_ptr<EnginePool> pool) noexcept = 0;
};

}  // namespace kvarena::replay
