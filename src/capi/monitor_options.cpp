#include "capi/monitor_options.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace kvarena::capi {
namespace {

/// `given`, or what the library's options have where it is zero.
template <class Value, class Given>
void choose(Given given, Value& value) noexcept {
  if (given != 0) value = static_cast<Value>(given);
}

/// The same where -1 means 0.
template <class Value>
void choose_or_off(std::int64_t given, Value& value) noexcept {
  if (given != 0) value = given == -1 ? Value{} : static_cast<Value>(given);
}

}  // namespace

Status check_members(const kvarena_monitor_options& given) noexcept {
  for (const auto& [option, bytes] :
       {std::pair(Option::drift_warning_bytes, given.drift_warning_bytes),
        std::pair(Option::drift_limit_bytes, given.drift_limit_bytes)}) {
    if (bytes < -1) return invalid_option(option, bytes, -1, INT64_MAX);
  }
  if (given.http_port >= 0 && given.http_port <= UINT16_MAX) return {};
  return invalid_option(Option::http_port, given.http_port, 0, UINT16_MAX);
}

Status as_member(Status refused) noexcept {
  switch (refused.option) {
    case Option::pressure_period_ns:  // a longer period than that of checks was taken as the same
      refused.required = static_cast<std::uint64_t>(-1);
      refused.available = INT64_MAX;
      break;
    case Option::max_connections: refused.option = Option::http_max_connections; break;
    case Option::max_request_bytes: refused.option = Option::http_max_request_bytes; break;
    case Option::request_limit_ms: refused.option = Option::http_request_limit_ms; break;
    default: break;
  }
  return refused;
}

HealthOptions health_options(const kvarena_monitor_options& given) {
  HealthOptions options;
  choose(given.period_ns, options.period_ns);
  choose_or_off(given.pressure_period_ns, options.pressure_period_ns);
  options.check_limit_ns = std::min(options.check_limit_ns, options.period_ns);
  options.pressure_period_ns = std::min(options.pressure_period_ns, options.period_ns);
  choose(given.check_limit_ns, options.check_limit_ns);
  choose(given.ticket_limit_ns, options.ticket_limit_ns);
  options.holder_grace_ns = given.holder_grace_ns;
  choose(given.step_limit_ns, options.step_limit_ns);
  choose_or_off(given.drift_warning_bytes, options.drift_warning_bytes);
  choose_or_off(given.drift_limit_bytes, options.drift_limit_bytes);
  PressureOptions& pressure = options.pressure;
  if (given.blocks_elevated != 0) pressure.blocks.elevated = given.blocks_elevated;
  if (given.blocks_critical != 0) pressure.blocks.critical = given.blocks_critical;
  if (given.vram_elevated != 0) pressure.vram.elevated = given.vram_elevated;
  if (given.vram_critical != 0) pressure.vram.critical = given.vram_critical;
  if (given.vram_exhausted != 0) pressure.vram.exhausted = given.vram_exhausted;
  if (given.hysteresis != 0) pressure.hysteresis = given.hysteresis;
  pressure.watch_vram = given.ignore_vram == 0;
  options.run_thread = given.no_thread == 0;
  return options;
}

HealthServerOptions server_options(const kvarena_monitor_options& given) {
  HealthServerOptions options;
  if (given.http_address != nullptr) options.address = given.http_address;
  if (given.http_token != nullptr) options.token = given.http_token;
  options.port = static_cast<std::uint16_t>(given.http_port);
  choose(given.http_max_connections, options.max_connections);
  choose(given.http_max_request_bytes, options.max_request_bytes);
  choose(given.http_request_limit_ms, options.request_limit_ms);
  return options;
}

}  // namespace kvarena::capi
