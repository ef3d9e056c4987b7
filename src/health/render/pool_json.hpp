#pragma once

/// @file
/// A pool in `GET /stats`. A pure function.

#include "health/render/health_json.hpp"

namespace kvarena {

/// Step, accounts, tables, tickets, audit, pressure (its cause is null when it is normal, its age
/// before the first look), the explanation of one more block, and the leak report by holder;
/// `details` may be nullptr. A holder's age, by the publisher's clock, and how long it is overdue,
/// by the monitor's (null where since or deadline was not given, 0 before the deadline), are as of
/// the details; every other age is by the monitor's clock.
Json pool_json(const PoolHealth& pool, const NamedPoolDetails* details, std::int64_t now_ns);

}  // namespace kvarena
