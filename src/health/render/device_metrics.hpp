#pragma once

/// @file
/// The families of devices: memory by the driver, usage by purpose, residency, drift.

#include "kvarena/health/health_report.hpp"

#include <prometheus/metric_family.h>

#include <vector>

namespace kvarena {

/// Adds the families of `devices`.
void add_device_families(const std::vector<DeviceHealth>& devices,
                         std::vector<prometheus::MetricFamily>& families);

}  // namespace kvarena
