#pragma once

/// @file
/// What tests compare of a HealthReport, and how they show one.

#include "kvarena/health/health_report.hpp"

#include <string>
#include <vector>

namespace kvarena::test {

/// The codes of a report's reasons.
inline std::vector<HealthReasonCode> codes(const HealthReport& report) {
  std::vector<HealthReasonCode> all;
  for (const HealthReason& reason : report.reasons) all.push_back(reason.code);
  return all;
}

/// All reasons of a report, for messages.
inline std::string text_of(const HealthReport& report) {
  std::string text = report.healthy ? "healthy" : "unhealthy";
  for (const HealthReason& reason : report.reasons) {
    text += "; " + std::string(name_of(reason.code)) + ": " + reason.text;
  }
  return text;
}

}  // namespace kvarena::test
