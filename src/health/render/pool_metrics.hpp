#pragma once

/// @file
/// The families of pools: blocks by state, tables, tickets, steps, pressure, audit.

#include "kvarena/health/health_report.hpp"

#include <prometheus/metric_family.h>

#include <cstdint>
#include <vector>

namespace kvarena {

/// Adds the families of `pools`; ages are told from `now_ns`.
void add_pool_families(const std::vector<PoolHealth>& pools, std::int64_t now_ns,
                       std::vector<prometheus::MetricFamily>& families);

}  // namespace kvarena
