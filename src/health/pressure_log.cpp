#include "health/pressure_log.hpp"

#include "base/log_internal.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace kvarena {

void PressureLog::write(const std::optional<PressureEvent>& event, PressureLevel level,
                        std::int64_t now_ns) {
  for (Channel* channel : {&alarms_, &remarks_}) {
    sum_up(*channel, channel->budget.take_left_out(now_ns), level);
  }
  if (!event) return;
  const PressureLevel worse = std::max(event->from, event->to);
  Channel& channel = worse >= PressureLevel::critical ? alarms_ : remarks_;
  if (channel.budget.admit(now_ns)) {
    log_line(channel.severity, "pressure pool=\"{}\" {}", pool_, to_string(*event));
  } else {
    channel.worst = std::max(channel.worst, worse);
  }
}

void PressureLog::close(PressureLevel level) noexcept try {
  for (Channel* channel : {&alarms_, &remarks_}) {
    sum_up(*channel, channel->budget.take_left_out(), level);
  }
} catch (const std::exception&) {
}

void PressureLog::sum_up(Channel& channel, std::int64_t left_out, PressureLevel level) {
  if (left_out == 0) return;
  const PressureLevel worst = std::exchange(channel.worst, PressureLevel::normal);
  log_line(channel.severity, "pressure pool=\"{}\" level={} changes_not_logged={} worst={}", pool_,
           name_of(level), left_out, name_of(worst));
}

}  // namespace kvarena
