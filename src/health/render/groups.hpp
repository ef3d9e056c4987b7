#pragma once

/// @file
/// The pages and groups of pools as metrics. Pure functions.

#include "health/render/metric_text.hpp"

#include "kvarena/health/health_report.hpp"

#include <string>
#include <vector>

namespace kvarena {

/// Adds the families of pages and groups, unless no pool has groups. `names` are those of the
/// pools.
void add_group_families(const std::vector<PoolHealth>& pools, const std::vector<std::string>& names,
                        std::vector<MetricFamily>& families);

}  // namespace kvarena
