#pragma once

/// @file
/// `DeviceWatch` and `PoolWatch`: what a monitor watches, and the results of the last check and
/// look. Times are by the monitor's clock. Only the thread that holds the monitor's `turn` calls
/// check and look. A question to a device takes as long as its driver needs.

#include "health/health_state.hpp"
#include "health/pressure_log.hpp"

#include "kvarena/device/device.hpp"
#include "kvarena/health/health_report.hpp"
#include "kvarena/health/pressure.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace kvarena {

/// Counts the users of a borrowed object, so that a thread can wait until nobody uses the object.
/// Entering never blocks, so a hung user does not stop other users. Thread-safe.
class UsageGate {
 public:
  /// One use of the object, from construction to destruction. It is false when the gate was already
  /// closed.
  class Use {
   public:
    /// Enters the gate unless it is closed.
    explicit Use(UsageGate& gate) : gate_(gate.enter() ? &gate : nullptr) {}
    ~Use() {
      if (gate_ != nullptr) gate_->leave();
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    explicit operator bool() const noexcept { return gate_ != nullptr; }

   private:
    UsageGate* gate_;
  };

  /// Closes the gate for new users and waits until all users have left.
  void close() {
    std::unique_lock lock(mutex_);
    is_closed_ = true;
    left_.wait(lock, [this] { return num_users_ == 0; });
  }

 private:
  bool enter() {
    const std::scoped_lock lock(mutex_);
    if (is_closed_) return false;
    ++num_users_;
    return true;
  }
  void leave() {
    const std::scoped_lock lock(mutex_);
    // Notifies under the lock, because the closing thread may destroy the gate when the last user
    // has left.
    if (--num_users_ == 0) left_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable left_;
  std::int64_t num_users_ = 0;
  bool is_closed_ = false;
};

struct DeviceCheck {
  LastDeviceCheck seen;                 ///< the driver's answers
  std::vector<HealthFinding> findings;  ///< what is wrong
};

/// The limits on the growth of drift, in bytes.
struct DriftLimits {
  std::uint64_t warning_bytes = 0;  ///< growth past this is logged; 0: never
  std::uint64_t limit_bytes = 0;    ///< growth past this is a reason; 0: never
};

class DeviceWatch {
 public:
  DeviceWatch(Device& watched, std::uint64_t its_id, const DriftLimits& drift)
      : id(its_id),
        device(watched),
        name(watched.name()),
        policy(watched.policy()),
        drift_(drift) {}

  /// Asks the driver about every allocation, and about the device. Logs drift.
  DeviceCheck check();

  const std::uint64_t id;        ///< id of the watch
  Device& device;                ///< use it only behind the gate
  const std::string name;        ///< Device::name
  const ResidencyPolicy policy;  ///< Device::policy
  UsageGate gate;                ///< closed when the device is no longer watched

  /// Written under the monitor's lock by the thread that holds the turn. That thread may read it
  /// without the lock.
  LastDeviceCheck last;

 private:
  void warn_of(const MemoryDrift& drift);
  void judge_drift(const MemoryDrift& drift, std::vector<HealthFinding>& findings) const;

  const DriftLimits drift_;
  std::int64_t drift_logged_bytes_ = 0;  // growth when it was last logged; 0: never logged
};

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

struct PoolLook {
  Sighting sighting;                      ///< of the snapshot that was read
  LastPoolLook seen{};                    ///< for reports
  std::optional<PressureEvent> event{};   ///< a change of level
  std::vector<HealthFinding> findings{};  ///< what is wrong
};

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
  void judge_accounts(const PoolSnapshot& snapshot, std::vector<HealthFinding>& findings) const;
  void judge_groups(const PoolSnapshot& snapshot, std::vector<HealthFinding>& findings) const;
  void judge_steps(const PoolSnapshot& snapshot, std::vector<HealthFinding>& findings);
  void judge_ticket(const PoolSnapshot& snapshot, std::int64_t age_ns, std::int64_t limit_ns,
                    std::vector<HealthFinding>& findings) const;
  void judge_progress(const PoolSnapshot& snapshot, bool has_moved, std::int64_t now_ns,
                      std::int64_t limit_ns, std::vector<HealthFinding>& findings);
  void judge_holders(const PoolSnapshot& snapshot, std::int64_t now_ns, std::int64_t grace_ns,
                     std::vector<HealthFinding>& findings);

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
