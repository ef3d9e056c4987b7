#pragma once

/// @file
/// The answer of `GET /metrics`: a HealthReport as Prometheus families, and their text. Pure
/// functions. Names begin with `kvarena_` and use base units; names of counters end in `_total`.
/// When two pools or devices have the same name, the label of the second gets a number
/// ("default#2"), because a scrape may have each series only once.

#include "health/render/metric_text.hpp"

#include "kvarena/health/health_report.hpp"

#include <string>
#include <vector>

namespace kvarena {

std::vector<MetricFamily> metric_families(const HealthReport& report);
/// Returns the families' text, for `Content-Type: text/plain; version=0.0.4`.
std::string metrics_text(const HealthReport& report);

}  // namespace kvarena
