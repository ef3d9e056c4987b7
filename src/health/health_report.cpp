#include "kvarena/health/health_report.hpp"

namespace kvarena {

std::string_view name_of(HealthReasonCode code) noexcept {
  switch (code) {
    case HealthReasonCode::not_checked: return "not_checked";
    case HealthReasonCode::residency_violated: return "residency_violated";
    case HealthReasonCode::accounts_violated: return "accounts_violated";
    case HealthReasonCode::steps_lost: return "steps_lost";
    case HealthReasonCode::device_lost: return "device_lost";
    case HealthReasonCode::device_unreachable: return "device_unreachable";
    case HealthReasonCode::memory_drift: return "memory_drift";
    case HealthReasonCode::ticket_late: return "ticket_late";
    case HealthReasonCode::holder_late: return "holder_late";
    case HealthReasonCode::engine_stuck: return "engine_stuck";
    case HealthReasonCode::check_stuck: return "check_stuck";
    case HealthReasonCode::monitor_stopped: break;
  }
  return "monitor_stopped";
}

}  // namespace kvarena
