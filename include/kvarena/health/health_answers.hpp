#pragma once

/// @file
/// The answers of a HealthServer as text, for engines that serve them by a server of their own.
/// docs/reference/metrics.md shows them. Pure functions of plain values; any thread.

#include "kvarena/base/export.hpp"
#include "kvarena/health/health_report.hpp"

#include <string>

namespace kvarena {

/// Returns the answer of GET /health: JSON on one line.
KVARENA_EXPORT std::string health_answer(const HealthReport& report);
/// Returns the answer of GET /stats: JSON on one line.
KVARENA_EXPORT std::string stats_answer(const HealthReport& report, const HealthDetails& details);
/// Returns the answer of GET /metrics: Prometheus text, for `text/plain; version=0.0.4`.
KVARENA_EXPORT std::string metrics_answer(const HealthReport& report);

}  // namespace kvarena
