#pragma once

/// @file
/// `DeviceWatch`: one watched device and the result of its last check. A question to the device
/// takes as long as its driver needs. Only the thread that holds the monitor's `turn` calls check.

#include "health/health_state.hpp"
#include "health/usage_gate.hpp"

#include "kvarena/device/device.hpp"
#include "kvarena/health/health_report.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvarena {

/// The result of a check.
struct DeviceCheck {
  LastDeviceCheck seen;           ///< the driver's answers
  std::vector<Finding> findings;  ///< what is wrong
};

/// The limits on the growth of drift, in bytes.
struct DriftLimits {
  std::uint64_t warning_bytes = 0;  ///< growth past this is logged; 0: never
  std::uint64_t limit_bytes = 0;    ///< growth past this is a reason; 0: never
};

/// One watched device.
class DeviceWatch {
 public:
  /// `watched` is borrowed.
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
  void judge_drift(const MemoryDrift& drift, std::vector<Finding>& findings) const;

  const DriftLimits drift_;
  std::int64_t drift_logged_bytes_ = 0;  // growth when it was last logged; 0: never logged
};

}  // namespace kvarena
