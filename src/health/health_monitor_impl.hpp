#pragma once

/// @file
/// The implementation of HealthMonitor, shared by its sources.
///
/// There are two locks. `turn` is held during a whole check or look, so one thread at a time asks
/// the devices. `mutex` guards the state and the list of watches. A thread may take `mutex` inside
/// `turn`. No thread holds `mutex` while it asks a driver or calls the engine back, so a report
/// never waits for a check. The gate of a device or pool keeps the object alive while it is asked.

#include "health/health_state.hpp"
#include "health/watches.hpp"

#include "kvarena/health/health_monitor.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace kvarena {

/// The news for the engine's callbacks, which are called when no lock is held.
struct HealthNews {
  std::vector<HealthReason> reasons;                      ///< reasons that have appeared
  std::vector<std::pair<WatchId, PressureEvent>> events;  ///< changes of pools' levels
};

struct HealthMonitor::Impl {
  class Look;

  Impl(const HealthOptions& its_options, const PressureGauge& its_gauge);
  ~Impl();

  void run() noexcept;
  /// Makes one check of all devices and pools. Throws only when host memory is exhausted.
  void check();
  void look();
  /// Wakes the thread to read the clock again or to make a wanted check.
  void wake();

  std::vector<std::shared_ptr<DeviceWatch>> watched_devices() const;
  std::vector<std::shared_ptr<PoolWatch>> watched_pools() const;
  /// Requires `turn`.
  void begin_check();
  void check_devices(HealthNews& news);
  void look_at_memory();
  void look_at_pools(HealthNews& news);
  /// Takes over the findings of a watch. Logs new findings at once, because the next device may
  /// hang.
  void note(std::uint64_t watch, const std::vector<HealthFinding>& findings, HealthNews& news);
  /// Calls the engine's callbacks. Requires that no lock is held.
  void announce(const HealthNews& news) const;
  /// Adds a pool. Requires `mutex`.
  Result<WatchId> add_pool(StepPublisher& publisher, std::string name, const Device* device);
  void add_device(Device& device);
  bool is_watched(const Device& device) const;

  const HealthOptions options;
  const Clock& clock;
  const PressureGauge gauge;  // each new pool begins with a copy of it

  std::mutex turn;

  mutable std::mutex mutex;
  std::condition_variable woken;
  HealthState state;
  std::vector<std::shared_ptr<DeviceWatch>> devices;
  std::vector<std::shared_ptr<PoolWatch>> pools;
  std::uint64_t next_id = 1;
  std::int64_t next_look_ns;
  bool is_check_wanted = false;  // a watched object has not been seen by a check
  bool is_woken = false;
  bool is_stopping = false;

  std::thread thread;  // last member: the thread uses all others
};

}  // namespace kvarena
