#pragma once

/// @file
/// `DeviceWatch`: one watched device, and what the last look at it gave. Asking the device may take
/// as long as its driver takes. check belongs to whoever has the monitor's turn.

#include "health/health_state.hpp"
#include "health/usage_gate.hpp"

#include "kvarena/device/device.hpp"
#include "kvarena/health/health_report.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvarena {

/// What a check gave.
struct DeviceCheck {
  LastDeviceCheck seen;           ///< what the driver said
  std::vector<Finding> findings;  ///< what is wrong
};

/// How much drift may grow. Bytes.
struct DriftLimits {
  std::uint64_t warning_bytes = 0;  ///< past this it is logged; 0: never
  std::uint64_t limit_bytes = 0;    ///< past this it is a reason; 0: never
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

  const std::uint64_t id;        ///< of the watch
  Device& device;                ///< use it only behind the gate
  const std::string name;        ///< Device::name
  const ResidencyPolicy policy;  ///< Device::policy
  UsageGate gate;                ///< closed when the device is no longer watched

  /// Written under the monitor's lock by whoever has its turn, who may read it without.
  LastDeviceCheck last;

 private:
  void warn_of(const MemoryDrift& drift);
  void judge_drift(const MemoryDrift& drift, std::vector<Finding>& findings) const;

  const DriftLimits drift_;
  std::int64_t drift_logged_bytes_ = 0;  // growth when it was last logged; 0: it was not
};

}  // namespace kvarena
