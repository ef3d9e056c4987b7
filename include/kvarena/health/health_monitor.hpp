#pragma once

/// @file
/// `HealthMonitor`: watches devices and pools from a thread of its own and knows at any time
/// whether the process may be trusted with work. Each period it verifies the residency of every
/// tracked allocation, reads the pools' snapshots (accounts, tickets, holders), the devices' sticky
/// errors and the drift of their memory; in between it watches pressure.
///
/// A violation is logged as critical, makes the process unhealthy until `acknowledge`, and calls
/// the engine's callback. A check that hangs, or a thread that has ended, is unhealthy too: report
/// judges by the clock, not by what the thread last said.
///
/// Violations last until they are acknowledged. An audit of the accounts that has failed stays
/// failed: it comes back with the next look. Every other reason lasts as long as it is found.
///
/// No answer is healthy for more than two periods after something has gone wrong. Checks find
/// devices; looks, which come with checks and each `pressure_period_ns`, find pools. How long a
/// ticket is open or a step outstanding is counted by the monitor's clock from the look that first
/// sees it, so a publisher may have a clock of its own. Not so a holder's deadline: it must be a
/// time of the monitor's clock (0: none). Holders are seen in the details that a look asks for and
/// a later look finds published; a deadline counts from the first look that could have seen it.
///
/// Thread-safe. Move-only. Watched objects must outlive the monitor, or be unwatched first.
/// Callbacks come from the monitor's thread (or from check_now's) without a lock held, once a
/// reason appears; what they throw is logged. They may call everything here and must not destroy
/// the monitor. Those of a check_now may run at the same time as the thread's and overtake them:
/// report tells what holds now. A check that is stuck and a thread that has ended cannot call back.

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

/// Limits and periods. Times in nanoseconds, a year at most.
struct HealthOptions {
  std::int64_t period_ns = 60'000'000'000;          ///< from check to check, begin to begin
  std::int64_t pressure_period_ns = 1'000'000'000;  ///< from look to look, at most `period_ns`;
                                                    ///< 0: only with checks
  std::int64_t check_limit_ns = 30'000'000'000;     ///< a check that runs longer is stuck; at
                                                    ///< most `period_ns`
  std::int64_t ticket_limit_ns = 30'000'000'000;    ///< a ticket open for longer is late
  std::int64_t holder_grace_ns = 0;                 ///< past its deadline
  std::int64_t step_limit_ns = 30'000'000'000;      ///< pending work without a published step
  std::uint64_t drift_warning_bytes = 512 << 20;    ///< growth of drift past this is logged;
                                                    ///< 0: never
  std::uint64_t drift_limit_bytes = 0;              ///< and past this is a reason; 0: never
  PressureOptions pressure{};                       ///< thresholds
  const Clock* clock = nullptr;                     ///< borrowed; nullptr: steady_clock()
  bool run_thread = true;                           ///< false: only check_now checks
  std::function<void(const HealthReason&)> on_unhealthy{};           ///< a reason has appeared
  std::function<void(WatchId, const PressureEvent&)> on_pressure{};  ///< a pool's level has changed
};

/// The process's conscience.
class KVARENA_EXPORT HealthMonitor {
 public:
  /// Starts the thread; the first check comes at once. Returns invalid_argument naming
  /// the option, exhausted (thread).
  static Result<HealthMonitor> create(const HealthOptions& options = {});
  /// Stops the thread promptly; waits for a check under way.
  ~HealthMonitor();
  HealthMonitor(HealthMonitor&&) noexcept;
  HealthMonitor& operator=(HealthMonitor&&) noexcept;

  /// Watches a device; it counts as not checked until a check, which comes at once, has seen it.
  /// Returns failed_precondition (device) when it is watched already.
  Status watch(Device& device);
  /// Watches a pool and, when it is not watched yet, the cache's device; a check comes at once,
  /// since what a device was asked before says nothing of new memory. Names tell pools apart:
  /// returns failed_precondition (name) for one that is taken, invalid_argument (name) for "".
  Result<WatchId> watch(KvCache& cache, std::string name = "default");
  /// Watches the pool of an engine that keeps its own manager and tables. Free VRAM of `device`,
  /// where that is watched, counts for its pressure. Returns as above.
  Result<WatchId> watch(StepPublisher& publisher, std::string name = "default",
                        const Device* device = nullptr);
  /// Forgets a pool; afterwards nothing of it is read: waits for a check or report that is just
  /// reading it. Returns not_found (name).
  Status unwatch(WatchId pool);
  /// Forgets a device. Waits as above, for as long as its driver takes to answer a check. Its
  /// violations stay until acknowledged. Returns not_found (device).
  Status unwatch(Device& device);

  /// The engine's own figures of a pool: requests that wait (work is pending while there are any),
  /// and preemptions since the last call. Never waits for a check. Returns not_found (name),
  /// invalid_argument (num_sequences) for a negative number.
  Status report_engine(WatchId pool, std::int64_t waiting_requests, std::int64_t new_preemptions);

  /// Runs a check here and now, after one that is under way, and returns the report.
  HealthReport check_now();
  /// Lets the thread look at the clock anew; for clocks that jump instead of running.
  void wake();
  /// What is known now; never waits for a check. Asks the trackers, not the driver.
  HealthReport report() const;
  /// The last details of the pools and the largest allocations of the devices. Asks each pool's
  /// writer for newer details; they come with its next publication. O(holders + allocations).
  HealthDetails details() const;
  /// Clears reasons that stay (violations); what still holds comes back with the next check.
  void acknowledge();

 private:
  struct Impl;
  explicit HealthMonitor(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvarena
