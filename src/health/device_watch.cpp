#include "health/device_watch.hpp"

#include "base/log_internal.hpp"

#include <string_view>
#include <utility>

namespace kvarena {
namespace {

/// "unknown" where NVML does not tell.
std::string bytes_or_unknown(const std::optional<std::uint64_t>& bytes) {
  return bytes ? std::to_string(*bytes) : "unknown";
}

/// A limit of 0 is never passed.
bool is_past(std::uint64_t limit_bytes, std::int64_t growth_bytes) noexcept {
  return limit_bytes != 0 && std::cmp_greater(growth_bytes, limit_bytes);
}

}  // namespace

DeviceCheck DeviceWatch::check() {
  DeviceCheck result;
  ResidencyReport residency = verify_residency(device);
  const Result<MemoryInfo> memory = device.memory_info();
  Result<MemoryDrift> drift = measure_drift(device);
  result.seen.allocations_checked = residency.checked;
  result.seen.resident = residency.resident && residency.status.is_ok();
  result.seen.memory = memory ? *memory : last.memory;
  if (drift) {
    warn_of(*drift);
    judge_drift(*drift, result.findings);
    result.seen.drift = *drift;
  }
  for (const ResidencyViolation& violation : residency.violations) {
    result.findings.push_back(
        {{HealthReasonCode::residency_violated, id, violation.record.serial,
          static_cast<std::uint64_t>(violation.placement.place)},
         fmt::format("{} (device {}, policy {})", describe(violation), name, name_of(policy))});
  }
  const Status failed = residency.status.is_ok() ? memory.status() : residency.status;
  if (const std::int32_t lost_to = device.lost_to(); lost_to != 0) {
    const Status lost{StatusCode::device_error, Resource::device, Option::none, lost_to, 0, 0, 0};
    result.seen.resident = false;
    result.findings.push_back({{HealthReasonCode::device_lost, id},
                               fmt::format("device {} is lost, only a new process gets it back: {}",
                                           name, device.describe(lost))});
  } else if (!failed) {
    result.findings.push_back(
        {{HealthReasonCode::device_unreachable, id},
         fmt::format("device {} could not be asked: {}", name, device.describe(failed))});
  }
  return result;
}

void DeviceWatch::judge_drift(const MemoryDrift& drift, std::vector<Finding>& findings) const {
  if (!is_past(drift_.limit_bytes, drift.growth_bytes)) return;
  findings.push_back(
      {{HealthReasonCode::memory_drift, id},
       fmt::format("device {}: {} bytes more are used than were recorded since it was opened, the "
                   "limit is {}; own {}, of which {} not tracked, other processes {}",
                   name, drift.growth_bytes, drift_.limit_bytes, bytes_or_unknown(drift.own_bytes),
                   bytes_or_unknown(drift.context_bytes), bytes_or_unknown(drift.other_bytes))});
}

void DeviceWatch::warn_of(const MemoryDrift& drift) {
  if (!is_past(drift_.warning_bytes, drift.growth_bytes)) {
    drift_logged_bytes_ = 0;
    return;
  }
  // Once, and again each time that as much has come on top.
  const std::int64_t since_logged = drift.growth_bytes - drift_logged_bytes_;
  if (!is_past(drift_.warning_bytes, since_logged)) return;
  drift_logged_bytes_ = drift.growth_bytes;
  log_line(LogLevel::warning,
           "memory drift device=\"{}\" growth_bytes={} driver_used_bytes={} tracked_bytes={} "
           "overhead_bytes={} own_bytes={} context_bytes={} other_bytes={}: memory is used that "
           "nobody recorded",
           name, drift.growth_bytes, drift.driver_used_bytes, drift.tracked_bytes,
           drift.overhead_bytes, bytes_or_unknown(drift.own_bytes),
           bytes_or_unknown(drift.context_bytes), bytes_or_unknown(drift.other_bytes));
}

}  // namespace kvarena
