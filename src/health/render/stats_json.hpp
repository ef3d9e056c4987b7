#pragma once

/// @file
/// The answer of `GET /stats`: everything that is known, holders and allocations included. A pure
/// function.

#include "health/render/health_json.hpp"

namespace kvarena {

/// version, health (as GET /health), checks, devices, pools. A device's and a pool's details are
/// found by name and order; those that `details` does not have are null.
Json stats_json(const HealthReport& report, const HealthDetails& details);

}  // namespace kvarena
