#pragma once

/// @file
/// The answers of `GET /health` and `GET /stats`. Pure functions.

#include "kvarena/health/health_report.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace kvarena {

/// Keeps the order in which fields are written.
using Json = nlohmann::ordered_json;

/// Text of a document on one line, with a newline; bytes that are not UTF-8 are replaced.
std::string to_text(const Json& document);
/// Seconds from `since_ns` to `now_ns`, at least 0.
double seconds_between(std::int64_t since_ns, std::int64_t now_ns) noexcept;

/// The account of a block manager, wherever one becomes JSON: in /stats and in reports of commands.
Json blocks_json(const BlockStats& blocks);

/// Whether to trust this process, in few fields: status, resident, policy (null without a device),
/// allocations_checked (by the last check: what `resident` speaks of), vram_bytes_used (all
/// devices, tracked), last_check_secs (age of the last check; null before the first), usage by
/// purpose, pressure (the highest level of the pools), reasons with code, text and since_secs.
Json health_json(const HealthReport& report);

/// Everything that is known: version, health (as GET /health), checks, devices, pools. A device's
/// and a pool's details are found by name and order; those that `details` does not have are null.
///
/// Of a pool: step, accounts, tables, tickets, audit, pressure (its cause is null when it is
/// normal, its age before the first look), the explanation of one more block, and the leak report
/// by holder. A holder's age, by the publisher's clock, and how long it is overdue, by the
/// monitor's (null where since or deadline was not given, 0 before the deadline), are as of the
/// details; every other age is by the monitor's clock.
Json stats_json(const HealthReport& report, const HealthDetails& details);

}  // namespace kvarena
