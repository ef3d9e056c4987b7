#pragma once

/// @file
/// The report of a HealthMonitor as plain values. HealthMonitor::report makes it; the HealthServer
/// renders it as JSON and as Prometheus metrics.

#include "kvarena/base/export.hpp"
#include "kvarena/device/device.hpp"
#include "kvarena/device/memory_drift.hpp"
#include "kvarena/device/residency.hpp"
#include "kvarena/health/pressure.hpp"
#include "kvarena/step/step_publisher.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena {

/// Why a process is unhealthy.
enum class HealthReasonCode : std::uint8_t {
  not_checked,         ///< no check has completed yet
  residency_violated,  ///< an allocation is not in the memory where it must be; stays until
                       ///< acknowledged
  accounts_violated,   ///< an audit of the accounts failed; stays until acknowledged
  steps_lost,          ///< a device did not take steps that have ended; stays until acknowledged
  device_lost,         ///< a sticky error of the device; a new process is needed
  device_unreachable,  ///< the driver could not be asked
  memory_drift,        ///< unrecorded memory has grown past HealthOptions::drift_limit_bytes
  ticket_late,         ///< a ticket has been open for longer than the limit
  holder_late,         ///< a holder is past its deadline by more than the limit
  engine_stuck,        ///< work is pending and no step has been published for longer than the limit
  check_stuck,         ///< a check has been running for longer than the limit
  monitor_stopped,     ///< no check has come when one was due
};

/// "residency_violated", ...
KVARENA_EXPORT std::string_view name_of(HealthReasonCode code) noexcept;

/// One reason why the process is unhealthy.
struct HealthReason {
  HealthReasonCode code = HealthReasonCode::not_checked;  ///< the kind of reason
  std::string text;           ///< the object and its figures, for people
  std::int64_t since_ns = 0;  ///< when it was first seen
};

/// The result of the last check of a device.
struct LastDeviceCheck {
  bool resident = false;                  ///< whether all allocations are VRAM of this device
  std::uint64_t allocations_checked = 0;  ///< allocations that the driver was asked about
  MemoryInfo memory;                      ///< the driver's last answer; each look asks
  std::optional<MemoryDrift> drift;       ///< absent: the driver could not tell
};

/// One watched device.
struct DeviceHealth : LastDeviceCheck {
  std::string name;                                     ///< Device::name
  ResidencyPolicy policy = ResidencyPolicy::vram_only;  ///< the memory that it accepts
  MemoryBreakdown usage;                                ///< tracked memory by purpose
};

/// The result of the last look at a pool.
struct LastPoolLook {
  PressureLevel pressure = PressureLevel::normal;  ///< the level of pressure
  bool pressure_by_vram = false;                   ///< whether VRAM, not blocks, decided it
  std::array<std::uint64_t, kNumPressureLevels> pressure_entered{};  ///< since the start
  std::optional<std::int64_t>
      looked_ns;  ///< time of the look by the monitor's clock; absent: no look yet
};

/// One watched pool. The times in `snapshot` are by the publisher's clock. All other times are by
/// the monitor's clock.
struct PoolHealth : LastPoolLook {
  std::string name;       ///< as given to watch
  PoolSnapshot snapshot;  ///< the last published
  std::int64_t published_ns =
      0;  ///< when a look first saw the snapshot; the time of the report when no look has
  std::int64_t oldest_ticket_ns =
      0;                          ///< since when its oldest ticket has been open, if there is one
  bool has_pending_work = false;  ///< StepPublisher::has_pending_work, or a request waits
  std::uint64_t preemptions = 0;  ///< reported by the engine
  std::int64_t waiting_requests = 0;  ///< reported by the engine
};

/// Counts and times of the checks.
struct CheckFigures {
  std::uint64_t completed = 0;  ///< since the start
  std::uint64_t failed =
      0;  ///< completed checks that found something wrong; older violations do not count
  std::int64_t last_ended_ns = 0;      ///< by the monitor's clock; 0: no check has completed yet
  std::int64_t last_duration_ns = 0;   ///< of the last check
  std::int64_t total_duration_ns = 0;  ///< of all checks
};

/// The state of everything watched.
struct HealthReport {
  bool healthy = false;               ///< there are no reasons
  bool resident = false;              ///< all devices are resident; false without a device
  std::int64_t now_ns = 0;            ///< by the monitor's clock
  std::vector<HealthReason> reasons;  ///< by code
  std::vector<DeviceHealth> devices;  ///< in order of watch
  std::vector<PoolHealth> pools;      ///< in order of watch
  CheckFigures checks;                ///< since the start
};

/// The details that a pool's writer published on request.
struct NamedPoolDetails {
  std::string name;     ///< as given to watch
  PoolDetails details;  ///< `step` says how old they are; times are by the publisher's clock
};

/// The largest allocations of a device.
struct DeviceAllocations {
  std::string name;                       ///< Device::name
  std::vector<AllocationRecord> largest;  ///< by bytes, then by address; at most kMaxAllocations
};

/// The figures that cost more than a HealthReport. HealthMonitor::details makes them.
struct HealthDetails {
  static constexpr std::size_t kMaxAllocations = 32;  ///< allocations listed for a device

  std::vector<NamedPoolDetails> pools;     ///< in order of watch
  std::vector<DeviceAllocations> devices;  ///< in order of watch
};

}  // namespace kvarena
