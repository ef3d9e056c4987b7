#pragma once

/// @file
/// A device in `GET /stats`. A pure function.

#include "health/render/health_json.hpp"

namespace kvarena {

/// name, policy, resident, memory, usage, drift, allocations; `details` may be nullptr.
Json device_json(const DeviceHealth& device, const DeviceAllocations* details);

}  // namespace kvarena
