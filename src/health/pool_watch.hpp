#pragma once

/// @file
/// `PoolWatch`: one watched pool. It checks the publisher's snapshots and measures the pressure on
/// memory. Times are by the monitor's clock. Only the thread that holds the monitor's `turn` calls
/// look.

#include "health/health_state.hpp"
#include "health/pressure_log.hpp"
#include "health/usage_gate.hpp"

#include "kvarena/health/health_report.hpp"
#include "kvarena/health/pressure.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvarena {

/// The last publication that a look saw, with the times by the monitor's clock at which its parts
/// were first seen. The publisher may have another clock, so only durations by that clock are used.
class Sighting {
 public:
  /// Sees the first publication.
  Sighting(const PoolSnapshot& snapshot, std::int64_t now_ns) noexcept
      : step_(snapshot.step), stamp_ns_(snapshot.published_ns), published_ns_(now_ns) {
    see_ticket(snapshot, now_ns);
  }

  /// Sees a snapshot. Returns whether it is a new publication.
  bool see(const PoolSnapshot& snapshot, std::int64_t now_ns) noexcept {
    see_ticket(snapshot, now_ns);
    if (snapshot.step == step_ && snapshot.published_ns == stamp_ns_) return false;
    step_ = snapshot.step;
    stamp_ns_ = snapshot.published_ns;
    published_ns_ = now_ns;
    return true;
  }
  /// Returns when the last publication was first seen.
  std::int64_t published_ns() const noexcept { return published_ns_; }
  /// Returns since when the oldest ticket has been open; undefined without an open ticket.
  std::int64_t ticket_ns() const noexcept { return ticket_ns_; }

 private:
  void see_ticket(const PoolSnapshot& snapshot, std::int64_t now_ns) noexcept {
    if (snapshot.oldest_ticket == ticket_) return;
    ticket_ = snapshot.oldest_ticket;
    const std::int64_t age_ns = snapshot.published_ns - snapshot.oldest_ticket_ns;
    ticket_ns_ = now_ns - std::max<std::int64_t>(0, age_ns);
  }

  std::uint64_t step_;
  std::int64_t stamp_ns_;  // by the publisher's clock; only compared
  std::int64_t published_ns_;
  Ticket ticket_ = kNoTicket;
  std::int64_t ticket_ns_ = 0;
};

/// The limits on times, in nanoseconds.
struct PoolLimits {
  std::int64_t ticket_ns = 0;        ///< a ticket open for longer is late
  std::int64_t holder_grace_ns = 0;  ///< a holder this long past its deadline is late
  std::int64_t step_ns = 0;          ///< pending work without a publication for longer is stuck
};

/// The result of a look at a pool.
struct PoolLook {
  Sighting sighting;                     ///< of the snapshot that was read
  LastPoolLook seen{};                   ///< for reports
  std::optional<PressureEvent> event{};  ///< a change of level
  std::vector<Finding> findings{};       ///< what is wrong
};

/// One watched pool.
class PoolWatch {
 public:
  /// Borrows `its_publisher`. The VRAM of `its_device` counts; the pointer is only compared.
  PoolWatch(StepPublisher& its_publisher, std::string its_name, const Device* its_device,
            std::uint64_t its_id, const PressureGauge& gauge, std::int64_t now_ns);
  /// Logs a summary of the changes of level that were left out of the log.
  ~PoolWatch() { log_.close(gauge_.level()); }
  PoolWatch(const PoolWatch&) = delete;
  PoolWatch& operator=(const PoolWatch&) = delete;

  /// Checks the pool. `memory` is the memory of its device. Logs changes of level. O(holders).
  PoolLook look(std::int64_t now_ns, const PoolLimits& limits, const MemoryInfo& memory);
  /// Returns whether work is pending, by its publisher or its engine.
  bool has_pending_work() const noexcept;

  const std::uint64_t id;                         ///< id of the watch
  StepPublisher& publisher;                       ///< use it only behind the gate
  const std::string name;                         ///< as given to watch
  const Device* const device;                     ///< its device, watched or not; nullptr: none
  UsageGate gate;                                 ///< closed when the pool is no longer watched
  std::atomic<std::int64_t> waiting_requests{0};  ///< reported by the engine
  std::atomic<std::uint64_t> preemptions{0};      ///< reported by the engine

  /// Results of the last look. Written under the monitor's lock by the thread that holds the turn.
  /// That thread may read them without the lock.
  LastPoolLook last;
  Sighting sighting;

 private:
  void judge_accounts(const PoolSnapshot& snapshot, std::vector<Finding>& findings) const;
  void judge_steps(const PoolSnapshot& snapshot, std::vector<Finding>& findings);
  void judge_ticket(const PoolSnapshot& snapshot, std::int64_t age_ns, std::int64_t limit_ns,
                    std::vector<Finding>& findings) const;
  void judge_progress(const PoolSnapshot& snapshot, bool has_moved, std::int64_t now_ns,
                      std::int64_t limit_ns, std::vector<Finding>& findings);
  void judge_holders(const PoolSnapshot& snapshot, std::int64_t now_ns, std::int64_t grace_ns,
                     std::vector<Finding>& findings);

  PressureGauge gauge_;
  PressureLog log_;
  std::int64_t progress_ns_;           // last look at which the engine was not stuck
  bool was_pending_ = false;           // at the last look
  std::uint64_t steps_lost_ = 0;       // at the last look
  std::uint64_t missed_launches_ = 0;  // the same
  std::int64_t looked_ns_;             // the last look, or when the watch began
  std::int64_t details_ns_;   // of the last details, by the publisher's clock; only compared
  std::int64_t detailed_ns_;  // the last look before those details came
};

}  // namespace kvarena
