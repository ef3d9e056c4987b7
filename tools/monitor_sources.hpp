#pragma once

/// @file
/// Where `kvarena monitor` looks: a kvarena HTTP server, or a device by its driver.

#include "device_option.hpp"
#include "health_client.hpp"
#include "monitor_frame.hpp"

#include "kvarena/base/clock.hpp"

#include <cstdint>
#include <string>

namespace kvarena::tools {

/// A server's /stats.
class ServerSource final : public MonitorSource {
 public:
  ServerSource(std::string url, HealthClient client, const Clock& clock)
      : url_(std::move(url)), client_(std::move(client)), clock_(clock) {}
  MonitorFrame look() override;

 private:
  std::string url_;
  HealthClient client_;
  const Clock& clock_;
  nlohmann::ordered_json before_;
  std::int64_t before_ns_ = 0;
};

/// A device's used and free memory and who uses it, as nvidia-smi shows them.
class DeviceSource final : public MonitorSource {
 public:
  explicit DeviceSource(OpenedDevice device) : device_(std::move(device)) {}
  MonitorFrame look() override;

 private:
  OpenedDevice device_;
};

}  // namespace kvarena::tools
