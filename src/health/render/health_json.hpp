#pragma once

/// @file
/// The answer of `GET /health`: whether to trust this process, in few fields. A pure function.

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

/// status, resident, policy (null without a device), allocations_checked (by the last check: what
/// `resident` speaks of), vram_bytes_used (all devices, tracked), last_check_secs (age of the last
/// check; null before the first), usage by purpose, pressure (the highest level of the pools),
/// reasons with code, text and since_secs.
Json health_json(const HealthReport& report);

}  // namespace kvarena
