#include "health/render/stats_json.hpp"

#include "health/render/device_json.hpp"
#include "health/render/pool_json.hpp"

#include "kvarena/base/version.hpp"

namespace kvarena {

namespace {

Json checks_json(const CheckFigures& checks) {
  return {{"completed", checks.completed},
          {"failed", checks.failed},
          {"last_duration_secs", seconds_between(0, checks.last_duration_ns)},
          {"total_duration_secs", seconds_between(0, checks.total_duration_ns)}};
}

/// Report and details are taken one after the other: what was watched or forgotten between the two
/// shifts them, and the name tells.
template <class Details>
const Details* find(const std::vector<Details>& details, std::size_t index,
                    const std::string& name) {
  if (index < details.size() && details[index].name == name) return &details[index];
  return nullptr;
}

}  // namespace

Json stats_json(const HealthReport& report, const HealthDetails& details) {
  Json devices = Json::array();
  for (std::size_t d = 0; d < report.devices.size(); ++d) {
    const DeviceHealth& device = report.devices[d];
    devices.push_back(device_json(device, find(details.devices, d, device.name)));
  }
  Json pools = Json::array();
  for (std::size_t p = 0; p < report.pools.size(); ++p) {
    const PoolHealth& pool = report.pools[p];
    pools.push_back(pool_json(pool, find(details.pools, p, pool.name), report.now_ns));
  }
  return {{"version", KVARENA_VERSION_STRING},
          {"health", health_json(report)},
          {"checks", checks_json(report.checks)},
          {"devices", std::move(devices)},
          {"pools", std::move(pools)}};
}

}  // namespace kvarena
