#include "health/health_state.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <set>
#include <utility>

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
namespace {

bool lasts(HealthReasonCode code) noexcept {
  return code == HealthReasonCode::residency_violated ||
         code == HealthReasonCode::accounts_violated || code == HealthReasonCode::steps_lost;
}

double seconds(std::int64_t ns) noexcept { return static_cast<double>(ns) / 1e9; }

}  // namespace

void HealthState::begin_check(std::int64_t now_ns) {
  is_running_ = true;
  has_begun_ = true;
  has_found_ = false;
  begun_ns_ = now_ns;
}

void HealthState::complete_check(std::int64_t now_ns) {
  is_running_ = false;
  looked_ns_ = begun_ns_;
  checks_.completed += 1;
  checks_.last_ended_ns = now_ns;
  checks_.last_duration_ns = now_ns - begun_ns_;
  checks_.total_duration_ns += checks_.last_duration_ns;
  if (has_found_) checks_.failed += 1;
}

std::int64_t HealthState::next_check_ns() const {
  return has_begun_ ? begun_ns_ + period_ns_ : created_ns_;
}

void HealthState::expect(std::uint64_t watch, std::string text, std::int64_t now_ns) {
  const ReasonKey key{HealthReasonCode::not_checked, watch};
  reasons_.insert_or_assign(key, HealthReason{key.code, std::move(text), now_ns});
}

std::vector<HealthReason> HealthState::found(std::uint64_t watch,
                                             std::span<const HealthFinding> findings,
                                             std::int64_t now_ns) {
  has_found_ = has_found_ || !findings.empty();
  std::set<ReasonKey> still;
  for (const HealthFinding& finding : findings) still.insert(finding.key);
  std::erase_if(reasons_, [&](const auto& entry) {
    return entry.first.watch == watch && !lasts(entry.first.code) && !still.contains(entry.first);
  });
  std::vector<HealthReason> appeared;
  for (const HealthFinding& finding : findings) {
    const auto [it, is_new] =
        reasons_.try_emplace(finding.key, HealthReason{finding.key.code, finding.text, now_ns});
    if (is_new) {
      appeared.push_back(it->second);
    } else {
      it->second.text = finding.text;
    }
  }
  return appeared;
}

void HealthState::forget(std::uint64_t watch) {
  std::erase_if(reasons_, [&](const auto& entry) {
    return entry.first.watch == watch && !lasts(entry.first.code);
  });
}

void HealthState::acknowledge() {
  std::erase_if(reasons_, [](const auto& entry) { return lasts(entry.first.code); });
}

std::vector<HealthReason> HealthState::reasons(std::int64_t now_ns) const {
  std::vector<HealthReason> all;
  if (checks_.completed == 0) {
    all.push_back({HealthReasonCode::not_checked, "no check has completed yet", created_ns_});
  }
  for (const auto& [key, reason] : reasons_) all.push_back(reason);
  const auto began_ns = is_running_ ? std::optional(begun_ns_) : look_began_ns_;
  if (began_ns && now_ns - *began_ns > check_limit_ns_) {
    all.push_back({HealthReasonCode::check_stuck,
                   fmt::format("a check has been running for {:.3f} s, the limit is {:.3f} s",
                               seconds(now_ns - *began_ns), seconds(check_limit_ns_)),
                   *began_ns + check_limit_ns_});
  }
  const std::int64_t looked_ns = checks_.completed == 0 ? created_ns_ : looked_ns_;
  const std::int64_t patience_ns = period_ns_ + check_limit_ns_;
  if (now_ns - looked_ns > patience_ns) {
    all.push_back({HealthReasonCode::monitor_stopped,
                   fmt::format("the last complete check began {:.3f} s ago, the period is {:.3f} s",
                               seconds(now_ns - looked_ns), seconds(period_ns_)),
                   looked_ns + patience_ns});
  }
  return all;
}

}  // namespace kvarena
