#pragma once

/// @file
/// A pool in `GET /stats`. A pure function.

#include "health/render/health_json.hpp"

namespace kvarena {

/// Step, accounts, tables, tickets, audit, pressure, the explanation of one more block, and the
/// leak report by holder; `details` may be nullptr.
Json pool_json(const PoolHealth& pool, const NamedPoolDetails* details, std::int64_t now_ns);

}  // namespace kvarena
