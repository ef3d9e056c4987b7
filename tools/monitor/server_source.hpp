#pragma once

/// @file
/// `ServerSource`: looks of `kvarena monitor` at a kvarena HTTP server.

#include "tools/monitor/health_client.hpp"
#include "tools/monitor/monitor_frame.hpp"
#include "tools/monitor/stats_document.hpp"

#include "kvarena/base/clock.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::tools {

/// A server's /stats.
class ServerSource final : public MonitorSource {
 public:
  /// `url` names the server.
  ServerSource(std::string url, HealthClient client, const Clock& clock)
      : url_(std::move(url)), client_(std::move(client)), clock_(clock) {}
  MonitorFrame look() override;

 private:
  std::string url_;
  HealthClient client_;
  const Clock& clock_;
  std::optional<StatsDocument> before_;
  std::int64_t before_ns_ = 0;
};

}  // namespace kvarena::tools
