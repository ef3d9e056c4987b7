#pragma once

/// @file
/// The prefix caches of pools as metrics. Pure functions.

#include "health/render/metric_text.hpp"

#include "kvarena/health/health_report.hpp"

#include <string>
#include <vector>

namespace kvarena {

/// Adds the families of prefix caches, unless no pool has one. `names` are those of the pools.
void add_prefix_families(const std::vector<PoolHealth>& pools,
                         const std::vector<std::string>& names,
                         std::vector<MetricFamily>& families);

}  // namespace kvarena
