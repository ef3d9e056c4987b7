#pragma once

/// @file
/// What a HealthMonitor knows, as plain values: made by HealthMonitor::report, rendered as JSON and
/// as Prometheus metrics by the HealthServer.

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
  residency_violated,  ///< memory is not where it must be; stays until acknowledged
  accounts_violated,   ///< an audit of the accounts failed; stays until acknowledged
  steps_lost,          ///< a device did not take steps that have ended; stays until acknowledged
  device_lost,         ///< a sticky error of the device; a new process is needed
  device_unreachable,  ///< the driver could not be asked
  memory_drift,        ///< more memory is used that nobody recorded than HealthOptions allow
  ticket_late,         ///< a ticket is open for longer than the limit
  holder_late,         ///< a holder is past its deadline by more than the limit
  engine_stuck,        ///< work is pending and no step has been published for longer than the limit
  check_stuck,         ///< a check runs for longer than the limit
  monitor_stopped,     ///< checks have stopped coming
};

/// "residency_violated", ...
KVARENA_EXPORT std::string_view name_of(HealthReasonCode code) noexcept;

/// One reason.
struct HealthReason {
  HealthReasonCode code = HealthReasonCode::not_checked;  ///< which kind
  std::string text;                                       ///< which object, which figures
  std::int64_t since_ns = 0;                              ///< when first seen
};

/// What the last check of a device gave.
struct LastDeviceCheck {
  bool resident = false;                  ///< whether all allocations are VRAM of this device
  std::uint64_t allocations_checked = 0;  ///< asked about
  MemoryInfo memory;                      ///< as the driver last told; each look asks
  std::optional<MemoryDrift> drift;       ///< absent: the driver could not tell
};

/// One watched device.
struct DeviceHealth : LastDeviceCheck {
  std::string name;                                     ///< Device::name
  ResidencyPolicy policy = ResidencyPolicy::vram_only;  ///< what it accepts
  MemoryBreakdown usage;                                ///< by purpose
};

/// What the last look at a pool gave.
struct LastPoolLook {
  PressureLevel pressure = PressureLevel::normal;  ///< how short memory was
  bool pressure_by_vram = false;                   ///< whether VRAM, not blocks, decided it
  std::array<std::uint64_t, kNumPressureLevels> pressure_entered{};  ///< since the start
  std::optional<std::int64_t> looked_ns;  ///< by the monitor's clock; absent: there was none
};

/// One watched pool. The times in `snapshot` are the publisher's, whose clock may be another; those
/// beside it are the monitor's.
struct PoolHealth : LastPoolLook {
  std::string name;                   ///< as given to watch
  PoolSnapshot snapshot;              ///< the last published
  std::int64_t published_ns = 0;      ///< when a look first saw it; now: none has yet
  std::int64_t oldest_ticket_ns = 0;  ///< since when its oldest ticket is open, if there is one
  bool has_pending_work = false;      ///< see StepPublisher, or reported by the engine
  std::uint64_t preemptions = 0;      ///< reported by the engine
  std::int64_t waiting_requests = 0;  ///< reported by the engine
};

/// How checks went.
struct CheckFigures {
  std::uint64_t completed = 0;         ///< since the start
  std::uint64_t failed = 0;            ///< that found something wrong themselves: a violation
                                       ///< that only awaits acknowledge counts no more
  std::int64_t last_ended_ns = 0;      ///< by the monitor's clock; 0: none yet
  std::int64_t last_duration_ns = 0;   ///< of the last
  std::int64_t total_duration_ns = 0;  ///< of all
};

/// The state of everything watched.
struct HealthReport {
  bool healthy = false;               ///< no reasons
  bool resident = false;              ///< all devices resident; false without a device
  std::int64_t now_ns = 0;            ///< by the monitor's clock
  std::vector<HealthReason> reasons;  ///< by code
  std::vector<DeviceHealth> devices;  ///< in order of watch
  std::vector<PoolHealth> pools;      ///< in order of watch
  CheckFigures checks;                ///< since the start
};

/// What a pool's writer published when asked.
struct NamedPoolDetails {
  std::string name;     ///< as given to watch
  PoolDetails details;  ///< their step says how old they are; their times are the publisher's
};

/// What a device's memory is used for, one by one.
struct DeviceAllocations {
  std::string name;                       ///< Device::name
  std::vector<AllocationRecord> largest;  ///< by bytes, then address; kMaxAllocations at most
};

/// What costs more than a HealthReport: made by HealthMonitor::details.
struct HealthDetails {
  static constexpr std::size_t kMaxAllocations = 32;  ///< listed of a device

  std::vector<NamedPoolDetails> pools;     ///< in order of watch
  std::vector<DeviceAllocations> devices;  ///< in order of watch
};

}  // namespace kvarena
