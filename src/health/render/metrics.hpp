#pragma once

/// @file
/// The answer of `GET /metrics`: a HealthReport as Prometheus families, and their text. Pure
/// functions. Names are under `kvarena_`, in base units; counters end in `_total`. A pool or device
/// whose name another one has too gets a number behind its label ("default#2"), since a scrape may
/// name a series once only.

#include "kvarena/health/health_report.hpp"

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

namespace kvarena {

/// All families of a report.
std::vector<prometheus::MetricFamily> metric_families(const HealthReport& report);
/// Their text exposition, for `Content-Type: text/plain; version=0.0.4`.
std::string metrics_text(const HealthReport& report);

}  // namespace kvarena
