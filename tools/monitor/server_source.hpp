#pragma once

/// @file
/// The source of `kvarena monitor` for a kvarena HTTP server.

#include "tools/monitor/monitor_frame.hpp"
#include "tools/monitor/stats_document.hpp"

#include "kvarena/base/clock.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace kvarena::tools {

/// Which server, and how to ask it.
struct HealthServerAddress {
  std::string url;        ///< as parse_http_url gives it
  std::string token{};    ///< empty: none
  std::string ca_file{};  ///< of certificate authorities, PEM; empty: the system's
  std::chrono::milliseconds limit = std::chrono::seconds(10);  ///< for the whole answer
};

/// A server's answer, or why there is none.
struct HealthAnswer {
  std::string body;      ///< of the answer, as it came
  std::string happened;  ///< why it failed; empty: it did not
  std::string advice;    ///< what to do

  bool is_ok() const noexcept { return happened.empty(); }
};

/// Sends GET /stats to a server with libcurl. A failure is described in clear words. An answer has
/// at most 64 MiB. Proxies of the environment are not used.
HealthAnswer fetch_stats(const HealthServerAddress& server);

/// A server's /stats.
class ServerSource final : public MonitorSource {
 public:
  ServerSource(HealthServerAddress server, const Clock& clock)
      : server_(std::move(server)), clock_(clock) {}
  MonitorFrame look() override;

 private:
  HealthServerAddress server_;
  const Clock& clock_;
  std::optional<StatsDocument> before_;
  std::int64_t before_ns_ = 0;
};

}  // namespace kvarena::tools
