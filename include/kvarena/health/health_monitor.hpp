#pragma once

/// @file
/// `HealthMonitor`: watches devices and pools from its own thread and reports at any time whether
/// the process is healthy. In each period one check verifies the residency of every tracked
/// allocation and reads the pools' snapshots (accounts, tickets, holders), the devices' sticky
/// errors and the drift of their memory. Between two checks, looks read the pools and the pressure
/// on memory.
///
/// A violation is logged as critical, makes the process unhealthy until `acknowledge`, and calls
/// the engine's callback. A hung check or an ended checker thread is reported unhealthy too,
/// because report() compares the time of the last check with the clock.
///
/// A violation lasts until it is acknowledged. A failed audit of the accounts comes back with the
/// next look, because the audit stays failed. Every other reason lasts as long as looks or checks
/// find it.
///
/// A report says "healthy" for at most two periods after something has gone wrong. Checks find the
/// failures of devices. Looks find the failures of pools; one look comes with each check and one in
/// each `pressure_period_ns`. The monitor's clock counts how long a ticket is open or a step is
/// outstanding, from the look that first sees it. A publisher may therefore have its own clock. A
/// holder's deadline must be a time of the monitor's clock (0: no deadline). A look asks for the
/// details with the holders, and a later look reads them when they are published. A deadline counts
/// from the first look that could have seen it.
///
/// Thread-safe. Move-only. Watched objects must outlive the monitor, or be unwatched first. The
/// monitor's thread, or the thread in check_now, calls a callback when a reason appears, without a
/// lock held. Exceptions of callbacks are logged. A callback may call every function here, but must
/// not destroy the monitor. Callbacks of check_now may run at the same time as callbacks of the
/// monitor's thread, and before older ones; report() has the present state. A hung check or an
/// ended thread cannot call back.

#include "kvarena/base/clock.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/ids.hpp"
#include "kvarena/base/result.hpp"
#include "kvarena/health/health_report.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace kvarena {

class Device;
class KvCache;
class StepPublisher;

/// Identifies a watched pool.
using WatchId = StrongId<struct WatchTag, std::uint64_t>;

/// Limits and periods. Times are in nanoseconds, at most one year.
struct HealthOptions {
  std::int64_t period_ns = 60'000'000'000;          ///< from the begin of a check to the next
  std::int64_t pressure_period_ns = 1'000'000'000;  ///< from one look to the next, at most
                                                    ///< `period_ns`; 0: looks come only with checks
  std::int64_t check_limit_ns =
      30'000'000'000;  ///< a check that runs for longer is stuck; at most `period_ns`
  std::int64_t ticket_limit_ns = 30'000'000'000;  ///< a ticket open for longer is late
  std::int64_t holder_grace_ns = 0;               ///< a holder this long past its deadline is late
  std::int64_t step_limit_ns = 30'000'000'000;    ///< an engine with pending work that publishes no
                                                  ///< step for this long is stuck
  std::uint64_t drift_warning_bytes = 512 << 20;  ///< growth of drift past this is logged; 0: never
  std::uint64_t drift_limit_bytes = 0;  ///< growth of drift past this is a reason; 0: never
  PressureOptions pressure{};           ///< thresholds of the pressure levels
  const Clock* clock = nullptr;         ///< borrowed; nullptr: steady_clock()
  bool run_thread = true;               ///< false: checks are made only by check_now
  std::function<void(const HealthReason&)> on_unhealthy{};           ///< a reason has appeared
  std::function<void(WatchId, const PressureEvent&)> on_pressure{};  ///< a pool's level has changed
};

/// Watches the devices and pools of a process.
class KVARENA_EXPORT HealthMonitor {
 public:
  /// Starts the thread, which makes the first check at once. Returns invalid_argument with the
  /// option, or exhausted (thread).
  static Result<HealthMonitor> create(const HealthOptions& options = {});
  /// Stops the thread promptly. Waits for a check that is running.
  ~HealthMonitor();
  HealthMonitor(HealthMonitor&&) noexcept;
  HealthMonitor& operator=(HealthMonitor&&) noexcept;

  /// Watches a device. A check comes at once; until it ends, the device counts as not checked.
  /// Returns failed_precondition (device) when the device is already watched.
  Status watch(Device& device);
  /// Watches a pool, and the cache's device when it is not watched yet. A check comes at once,
  /// because earlier checks did not see the new memory. Each pool needs its own name: returns
  /// failed_precondition (name) for a name in use, or invalid_argument (name) for "".
  Result<WatchId> watch(KvCache& cache, std::string name = "default");
  /// Watches the pool of an engine that has its own manager and tables. The free VRAM of `device`
  /// counts for the pool's pressure when `device` is watched. Returns what the function above
  /// returns.
  Result<WatchId> watch(StepPublisher& publisher, std::string name = "default",
                        const Device* device = nullptr);
  /// Stops watching a pool. Waits for a check or a report that is reading the pool; nothing reads
  /// it after the return. Returns not_found (name).
  Status unwatch(WatchId pool);
  /// Stops watching a device. Waits likewise, for as long as the driver takes to answer a check.
  /// The device's violations stay until acknowledged. Returns not_found (device).
  Status unwatch(Device& device);

  /// Takes the engine's own figures of a pool: the waiting requests, and the preemptions since the
  /// last call. Work is pending while a request waits. Never waits for a check. Returns not_found
  /// (name), or invalid_argument (num_sequences) for a negative number.
  Status report_engine(WatchId pool, std::int64_t waiting_requests, std::int64_t new_preemptions);

  /// Runs a check on the calling thread and returns the report. Waits first for a running check.
  HealthReport check_now();
  /// Makes the thread read the clock again. Call it after an injected clock has jumped.
  void wake();
  /// Returns the present state. Never waits for a check. Asks the trackers, not the driver.
  HealthReport report() const;
  /// Returns the last details of the pools and the largest allocations of the devices. Asks each
  /// pool's writer for newer details, which come with its next publication. O(holders +
  /// allocations).
  HealthDetails details() const;
  /// Clears the violations. A violation that still holds comes back with the next check.
  void acknowledge();

 private:
  struct Impl;
  explicit HealthMonitor(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
