#include "kvarena/health/health_server.hpp"

#include "health/http/endpoints.hpp"
#include "health/http/server.hpp"
#include "health/render/json.hpp"
#include "health/render/metrics.hpp"

#include "base/log_internal.hpp"
#include "base/range_checks.hpp"

#include "kvarena/health/health_answers.hpp"
#include "kvarena/health/health_monitor.hpp"

#include <algorithm>
#include <utility>

namespace kvarena {

std::string health_answer(const HealthReport& report) { return to_text(health_json(report)); }

std::string stats_answer(const HealthReport& report, const HealthDetails& details) {
  return to_text(stats_json(report, details));
}

std::string metrics_answer(const HealthReport& report) { return metrics_text(report); }

namespace {

constexpr const char* kJsonType = "application/json";
constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

Status validate(const HealthServerOptions& options) {
  const auto request_bytes = static_cast<std::int64_t>(options.max_request_bytes);
  if (Status s = check_each({
          {Option::max_connections, options.max_connections, 1, 1024},
          {Option::max_request_bytes, request_bytes, 256, 1 << 20},
          {Option::request_limit_ms, options.request_limit_ms, 10, 600'000},
      });
      !s) {
    return s;
  }
  const auto is_loopback = http::is_loopback(options.address);
  if (!is_loopback) return http::no_address();
  if ((!*is_loopback || !options.token.empty()) && !http::is_valid_token(options.token)) {
    return invalid_option(Option::token, static_cast<std::int64_t>(options.token.size()),
                          http::kMinTokenLength, http::kMaxTokenLength);
  }
  return {};
}

bool only_a_new_process_helps(const HealthReport& report) {
  return std::ranges::any_of(report.reasons, [](const HealthReason& reason) {
    return reason.code == HealthReasonCode::device_lost;
  });
}

http::Routes routes_of(HealthMonitor& monitor) {
  return {
      {"/live",
       [&monitor] {
         if (!only_a_new_process_helps(monitor.report())) return http::Answer{.body = "alive\n"};
         return http::Answer{.status = 503, .body = "the device is lost: restart the process\n"};
       }},
      {"/health",
       [&monitor] {
         const HealthReport report = monitor.report();
         return http::Answer{report.healthy ? 200 : 503, kJsonType, health_answer(report)};
       }},
      {"/metrics",
       [&monitor] {
         return http::Answer{200, kMetricsType, metrics_answer(monitor.report())};
       }},
      {"/stats",
       [&monitor] {
         const HealthDetails details = monitor.details();
         return http::Answer{200, kJsonType, stats_answer(monitor.report(), details)};
       }},
  };
}

bool is_anything_unchecked(const HealthReport& report) {
  return std::ranges::any_of(report.reasons, [](const HealthReason& reason) {
    return reason.code == HealthReasonCode::not_checked;
  });
}

http::Limits limits_of(const HealthServerOptions& options) {
  return {static_cast<std::size_t>(options.max_connections),
          static_cast<std::size_t>(options.max_request_bytes),
          std::chrono::milliseconds(options.request_limit_ms)};
}

}  // namespace

struct HealthServer::Impl {
  std::unique_ptr<http::Server> server;
};

Result<HealthServer> HealthServer::start(HealthMonitor& monitor,
                                         const HealthServerOptions& options) {
  if (const Status status = validate(options); !status) return status;
  if (is_anything_unchecked(monitor.report())) static_cast<void>(monitor.check_now());
  auto listener = http::Listener::bind(options.address, options.port);
  if (!listener) return listener.status();
  auto server = http::Server::start(
      std::move(listener).value(),
      {routes_of(monitor), options.token, *http::is_loopback(options.address)}, limits_of(options));
  if (!server) return server.status();
  log_line(LogLevel::info, "health server: {} token={}", (*server)->listener().url,
           options.token.empty() ? "none" : "needed");
  return HealthServer(std::make_unique<Impl>(std::move(server).value()));
}

HealthServer::HealthServer(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
HealthServer::~HealthServer() = default;
HealthServer::HealthServer(HealthServer&&) noexcept = default;
HealthServer& HealthServer::operator=(HealthServer&&) noexcept = default;

std::uint16_t HealthServer::port() const noexcept { return impl_->server->listener().port; }
std::string HealthServer::url() const { return impl_->server->listener().url; }

}  // namespace kvarena
