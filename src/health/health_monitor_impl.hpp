#pragma once

/// @file
/// What HealthMonitor is made of; shared by its sources.
///
/// Two locks. `turn` is held through a check or a look: those that ask devices come one at a time.
/// `mutex` guards what is known and what is watched. It may be taken inside `turn`, and is never
/// held while a driver is asked or the engine called back, so that a report waits for no check.
/// What is being asked meanwhile stays there because of its gate.

#include "health/device_watch.hpp"
#include "health/health_state.hpp"
#include "health/pool_watch.hpp"

#include "kvarena/health/health_monitor.hpp"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace kvarena {

/// What the engine is told once no lock is held.
struct HealthNews {
  std::vector<HealthReason> reasons;                      ///< that have appeared
  std::vector<std::pair<WatchId, PressureEvent>> events;  ///< of pools
};

struct HealthMonitor::Impl {
  class Look;

  Impl(const HealthOptions& its_options, const PressureGauge& its_gauge);
  ~Impl();

  /// The thread's whole life.
  void run() noexcept;
  /// One check of everything; throws only when host memory is out.
  void check();
  /// One look at pressure and pools.
  void look();
  /// Wakes the thread to read the clock anew, or for a check that is wanted.
  void wake();

  /// The watches as they are now.
  std::vector<std::shared_ptr<DeviceWatch>> watched_devices() const;
  std::vector<std::shared_ptr<PoolWatch>> watched_pools() const;
  /// Requires `turn`.
  void begin_check();
  void check_devices(HealthNews& news);
  void look_at_memory();
  void look_at_pools(HealthNews& news);
  /// Takes over what was found of a watch; logs what is new at once, since the next device may
  /// hang.
  void note(std::uint64_t watch, const std::vector<Finding>& findings, HealthNews& news);
  /// Calls back. Requires that no lock is held.
  void announce(const HealthNews& news) const;
  /// Adds a pool. Requires `mutex`.
  Result<WatchId> add_pool(StepPublisher& publisher, std::string name, const Device* device);
  void add_device(Device& device);
  bool is_watched(const Device& device) const;

  const HealthOptions options;
  const Clock& clock;
  const PressureGauge gauge;  // as a new pool's begins

  std::mutex turn;

  mutable std::mutex mutex;
  std::condition_variable woken;
  HealthState state;
  std::vector<std::shared_ptr<DeviceWatch>> devices;
  std::vector<std::shared_ptr<PoolWatch>> pools;
  std::uint64_t next_id = 1;
  std::int64_t next_look_ns;
  bool is_check_wanted = false;  // something is watched that no check has seen
  bool is_woken = false;
  bool is_stopping = false;

  std::thread thread;  // last: everything is there when it begins
};

}  // namespace kvarena
