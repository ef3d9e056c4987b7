#include "health/render/health_json.hpp"

#include <algorithm>

namespace kvarena {

namespace {

Json policy_json(const HealthReport& report) {
  if (report.devices.empty()) return nullptr;
  const bool strict = std::all_of(
      report.devices.begin(), report.devices.end(),
      [](const DeviceHealth& device) { return device.policy == ResidencyPolicy::vram_only; });
  return name_of(strict ? ResidencyPolicy::vram_only : ResidencyPolicy::allow_host);
}

Json last_check_json(const HealthReport& report) {
  if (report.checks.completed == 0) return nullptr;
  return seconds_between(report.checks.last_ended_ns, report.now_ns);
}

Json usage_json(const HealthReport& report) {
  Json usage = Json::object();
  for (std::size_t p = 0; p < kNumMemoryPurposes; ++p) {
    std::uint64_t bytes = 0;
    for (const DeviceHealth& device : report.devices) bytes += device.usage.by_purpose[p].bytes;
    usage[std::string(name_of(static_cast<MemoryPurpose>(p)))] = bytes;
  }
  return usage;
}

Json reasons_json(const HealthReport& report) {
  Json reasons = Json::array();
  for (const HealthReason& reason : report.reasons) {
    reasons.push_back({{"code", name_of(reason.code)},
                       {"text", reason.text},
                       {"since_secs", seconds_between(reason.since_ns, report.now_ns)}});
  }
  return reasons;
}

}  // namespace

std::string to_text(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

double seconds_between(std::int64_t since_ns, std::int64_t now_ns) noexcept {
  return now_ns <= since_ns ? 0.0 : static_cast<double>(now_ns - since_ns) / 1e9;
}

Json health_json(const HealthReport& report) {
  std::uint64_t used_bytes = 0;
  std::uint64_t checked = 0;
  for (const DeviceHealth& device : report.devices) {
    used_bytes += device.usage.total.bytes;
    checked += device.allocations_checked;
  }
  auto pressure = PressureLevel::normal;
  for (const PoolHealth& pool : report.pools) pressure = std::max(pressure, pool.pressure);
  return {{"status", report.healthy ? "healthy" : "unhealthy"},
          {"resident", report.resident},
          {"policy", policy_json(report)},
          {"allocations_checked", checked},
          {"vram_bytes_used", used_bytes},
          {"last_check_secs", last_check_json(report)},
          {"usage", usage_json(report)},
          {"pressure", name_of(pressure)},
          {"reasons", reasons_json(report)}};
}

}  // namespace kvarena
