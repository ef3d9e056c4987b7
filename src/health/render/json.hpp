#pragma once

/// @file
/// The JSON answers of `GET /health` and `GET /stats`. Pure functions.

#include "kvarena/health/health_report.hpp"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace kvarena {

/// JSON whose fields keep the order in which they are written.
using Json = nlohmann::ordered_json;

/// Returns the text of a document on one line, with a newline. Bytes that are not UTF-8 are
/// replaced.
std::string to_text(const Json& document);
/// Returns the seconds from `since_ns` to `now_ns`, at least 0.
double seconds_between(std::int64_t since_ns, std::int64_t now_ns) noexcept;

/// Returns the account of a block manager (to_json), for /stats and for reports of commands.
Json blocks_json(const BlockStats& blocks);

/// Returns the pages of a pool with groups (to_json); null where it has none.
Json pages_json(const PoolSnapshot& snapshot);
/// Returns the list of a pool's groups (to_json), empty where it has none.
Json groups_json(const PoolSnapshot& snapshot);
/// Returns the figures of a pool's prefix cache (to_json); null where it has none.
Json prefix_json(const PoolSnapshot& snapshot);

/// Returns the answer of GET /health: status, resident, policy (null without a device),
/// allocations_checked (by the last check, the allocations that `resident` is about),
/// vram_bytes_used (tracked, of all devices), last_check_secs (age of the last check; null before
/// the first), usage by purpose, pressure (the highest level of the pools), reasons with code, text
/// and since_secs.
Json health_json(const HealthReport& report);

/// Returns the answer of GET /stats: version, health (as GET /health), checks, devices, pools. The
/// details of a device or pool are found by name and order. Details that are missing in `details`
/// are null.
///
/// A pool has step, accounts, pages (null without groups), groups, tables, tickets, audit, pressure
/// (its cause is null at the normal level, its age is null before the first look), the explanation
/// for one more block, and the leak report by holder. A holder's age is by the publisher's clock,
/// and null without `since`. The time by which a holder is overdue is by the monitor's clock, null
/// without a deadline, and 0 before the deadline. Both are from the time of the details. Every
/// other age is by the monitor's clock.
Json stats_json(const HealthReport& report, const HealthDetails& details);

}  // namespace kvarena
