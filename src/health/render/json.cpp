#include "health/render/json.hpp"

#include "kvarena/allocator/json.hpp"
#include "kvarena/base/version.hpp"
#include "kvarena/blocktable/json.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <new>
#include <span>
#include <utility>

namespace kvarena {

std::string to_text(const Json& document) {
  return document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

double seconds_between(std::int64_t since_ns, std::int64_t now_ns) noexcept {
  return now_ns <= since_ns ? 0.0 : static_cast<double>(now_ns - since_ns) / 1e9;
}

namespace {

/// Parses a value that the core has written. The core returns "" when there is no memory.
Json parsed(const std::string& text) {
  if (text.empty()) throw std::bad_alloc();
  return Json::parse(text);
}

}  // namespace

Json blocks_json(const BlockStats& blocks) { return parsed(to_json(blocks)); }

Json pages_json(const PoolSnapshot& snapshot) {
  return snapshot.num_groups == 0 ? Json(nullptr) : parsed(to_json(snapshot.pages));
}

Json groups_json(const PoolSnapshot& snapshot) {
  const auto count = static_cast<std::size_t>(snapshot.num_groups);
  return parsed(
      to_json(std::span(snapshot.groups).first(count), std::span(snapshot.kinds).first(count)));
}

Json prefix_json(const PoolSnapshot& snapshot) {
  if (snapshot.has_prefix_cache == 0) return nullptr;
  return parsed(to_json(snapshot.prefix, snapshot.prefix_use));
}

namespace {

// ---- GET /health --------------------------------------------------------------------------------

Json policy_json(const HealthReport& report) {
  if (report.devices.empty()) return nullptr;
  const bool strict = std::all_of(
      report.devices.begin(), report.devices.end(),
      [](const DeviceHealth& device) { return device.policy == ResidencyPolicy::vram_only; });
  return name_of(strict ? ResidencyPolicy::vram_only : ResidencyPolicy::allow_host);
}

Json last_check_json(const HealthReport& report) {
  if (report.checks.completed == 0) return nullptr;
  return seconds_between(report.checks.last_ended_ns, report.now_ns);
}

Json usage_json(const HealthReport& report) {
  Json usage = Json::object();
  for (std::size_t p = 0; p < kNumMemoryPurposes; ++p) {
    std::uint64_t bytes = 0;
    for (const DeviceHealth& device : report.devices) bytes += device.usage.by_purpose[p].bytes;
    usage[std::string(name_of(static_cast<MemoryPurpose>(p)))] = bytes;
  }
  return usage;
}

Json reasons_json(const HealthReport& report) {
  Json reasons = Json::array();
  for (const HealthReason& reason : report.reasons) {
    reasons.push_back({{"code", name_of(reason.code)},
                       {"text", reason.text},
                       {"since_secs", seconds_between(reason.since_ns, report.now_ns)}});
  }
  return reasons;
}

// ---- a device -----------------------------------------------------------------------------------

Json usage_json(const MemoryUsage& usage) {
  return {{"bytes", usage.bytes}, {"peak_bytes", usage.peak_bytes}, {"allocations", usage.count}};
}

Json breakdown_json(const MemoryBreakdown& breakdown) {
  Json by_purpose = Json::object();
  for (std::size_t p = 0; p < kNumMemoryPurposes; ++p) {
    by_purpose[std::string(name_of(static_cast<MemoryPurpose>(p)))] =
        usage_json(breakdown.by_purpose[p]);
  }
  return {{"total", usage_json(breakdown.total)},
          {"by_purpose", std::move(by_purpose)},
          {"staging", usage_json(breakdown.staging)},
          {"allocations_ever", breakdown.allocations_ever},
          {"frees_ever", breakdown.frees_ever}};
}

Json optional_json(const std::optional<std::uint64_t>& bytes) {
  return bytes ? Json(*bytes) : Json(nullptr);
}

Json drift_json(const std::optional<MemoryDrift>& drift) {
  if (!drift) return nullptr;
  return {{"driver_used_bytes", drift->driver_used_bytes},
          {"tracked_bytes", drift->tracked_bytes},
          {"drift_bytes", drift->drift_bytes},
          {"overhead_bytes", drift->overhead_bytes},
          {"growth_bytes", drift->growth_bytes},
          {"own_bytes", optional_json(drift->own_bytes)},
          {"context_bytes", optional_json(drift->context_bytes)},
          {"other_bytes", optional_json(drift->other_bytes)}};
}

Json allocations_json(const DeviceAllocations* details) {
  if (details == nullptr) return nullptr;
  Json largest = Json::array();
  for (const AllocationRecord& record : details->largest) {
    largest.push_back({{"pointer", fmt::format("{}", fmt::ptr(record.pointer))},
                       {"bytes", record.bytes},
                       {"purpose", name_of(record.purpose)},
                       {"kind", name_of(record.kind)},
                       {"description", record.description}});
  }
  return largest;
}

/// name, policy, resident, memory, usage, drift, allocations; `details` may be nullptr.
Json device_json(const DeviceHealth& device, const DeviceAllocations* details) {
  return {{"name", device.name},
          {"policy", name_of(device.policy)},
          {"resident", device.resident},
          {"memory",
           {{"total_bytes", device.memory.total_bytes}, {"free_bytes", device.memory.free_bytes}}},
          {"usage", breakdown_json(device.usage)},
          {"drift", drift_json(device.drift)},
          {"allocations_checked", device.allocations_checked},
          {"largest_allocations", allocations_json(details)}};
}

// ---- a pool -------------------------------------------------------------------------------------

Json ticket_json(Ticket ticket) { return ticket == kNoTicket ? Json(nullptr) : Json(ticket.value); }

Json tickets_json(const PoolHealth& pool, std::int64_t now_ns) {
  const bool any = pool.snapshot.oldest_ticket != kNoTicket;
  const double age = seconds_between(pool.oldest_ticket_ns, now_ns);
  return {{"open", pool.snapshot.open_tickets},
          {"oldest", ticket_json(pool.snapshot.oldest_ticket)},
          {"oldest_age_secs", any ? Json(age) : Json(nullptr)}};
}

Json audit_json(const AuditProgress& audit) {
  return {{"blocks_checked", audit.blocks_checked},
          {"passes", audit.passes},
          {"failure", audit.failure.is_ok() ? Json(nullptr) : Json(describe(audit.failure))}};
}

Json pressure_json(const PoolHealth& pool, std::int64_t now_ns) {
  Json entered = Json::object();
  for (std::size_t l = 0; l < kNumPressureLevels; ++l) {
    entered[std::string(name_of(static_cast<PressureLevel>(l)))] = pool.pressure_entered[l];
  }
  Json cause = nullptr;
  if (pool.pressure != PressureLevel::normal) cause = pool.pressure_by_vram ? "vram" : "blocks";
  return {{"level", name_of(pool.pressure)},
          {"cause", std::move(cause)},
          {"age_secs", pool.looked_ns ? Json(seconds_between(*pool.looked_ns, now_ns)) : nullptr},
          {"entered", std::move(entered)}};
}

/// Seconds from a time that somebody may have given; 0 stands for none.
Json seconds_since(std::int64_t given_ns, std::int64_t then_ns) {
  return given_ns == 0 ? Json(nullptr) : Json(seconds_between(given_ns, then_ns));
}

/// A moment by both clocks.
struct Moment {
  std::int64_t publisher_ns;
  std::int64_t monitor_ns;
};

/// Adds how old a holder was then and by how much it was overdue. `since_ns` is a time of the
/// publisher's clock, a deadline of the monitor's.
Json aged(Json json, const HolderReport& holder, const Moment& then) {
  json["age_secs"] = seconds_since(holder.since_ns, then.publisher_ns);
  json["overdue_secs"] = seconds_since(holder.deadline_ns, then.monitor_ns);
  return json;
}

Json holders_json(std::span<const HolderReport> reports, const Moment& then) {
  Json holders = Json::array();
  for (const HolderReport& holder : reports) {
    holders.push_back(aged(parsed(to_json(holder)), holder, then));
  }
  return holders;
}

Json explanation_json(const Explanation& explanation, const Moment& then) {
  Json json = parsed(to_json(explanation));
  Json& largest = json["largest"];
  for (std::size_t i = 0; i < explanation.num_largest; ++i) {
    largest[i] = aged(std::move(largest[i]), explanation.largest[i], then);
  }
  return json;
}

Json details_json(const NamedPoolDetails* named, const PoolHealth& pool, std::int64_t now_ns) {
  if (named == nullptr) return nullptr;
  const PoolDetails& details = named->details;
  // So much older than the snapshot, whose age the monitor knows.
  const std::int64_t older_ns = pool.snapshot.published_ns - details.published_ns;
  const Moment then{details.published_ns, pool.published_ns - std::max<std::int64_t>(0, older_ns)};
  return {{"step", details.step},
          {"age_secs", seconds_between(then.monitor_ns, now_ns)},
          {"explanation", explanation_json(details.explanation, then)},
          {"holders", holders_json(details.holders, then)}};
}

/// `details` may be nullptr.
Json pool_json(const PoolHealth& pool, const NamedPoolDetails* details, std::int64_t now_ns) {
  const PoolSnapshot& snapshot = pool.snapshot;
  return {{"name", pool.name},
          {"step", snapshot.step},
          {"steps_lost", snapshot.steps_lost},
          {"missed_launches", snapshot.missed_launches},
          {"age_secs", seconds_between(pool.published_ns, now_ns)},
          {"pending_work", pool.has_pending_work},
          {"waiting_requests", pool.waiting_requests},
          {"preemptions", pool.preemptions},
          {"pressure", pressure_json(pool, now_ns)},
          {"blocks", blocks_json(snapshot.blocks)},
          {"pages", pages_json(snapshot)},
          {"groups", groups_json(snapshot)},
          {"tables", parsed(to_json(snapshot.tables))},
          {"prefix_cache", prefix_json(snapshot)},
          {"tickets", tickets_json(pool, now_ns)},
          {"audit", audit_json(snapshot.audit)},
          {"details", details_json(details, pool, now_ns)}};
}

// ---- GET /stats ---------------------------------------------------------------------------------

Json checks_json(const CheckFigures& checks) {
  return {{"completed", checks.completed},
          {"failed", checks.failed},
          {"last_duration_secs", seconds_between(0, checks.last_duration_ns)},
          {"total_duration_secs", seconds_between(0, checks.total_duration_ns)}};
}

/// Report and details are taken one after the other: what was watched or forgotten between the two
/// shifts them, and the name tells.
template <class Details>
const Details* find(const std::vector<Details>& details, std::size_t index,
                    const std::string& name) {
  if (index < details.size() && details[index].name == name) return &details[index];
  return nullptr;
}

}  // namespace

Json health_json(const HealthReport& report) {
  std::uint64_t used_bytes = 0;
  std::uint64_t checked = 0;
  for (const DeviceHealth& device : report.devices) {
    used_bytes += device.usage.total.bytes;
    checked += device.allocations_checked;
  }
  auto pressure = PressureLevel::normal;
  for (const PoolHealth& pool : report.pools) pressure = std::max(pressure, pool.pressure);
  return {{"status", report.healthy ? "healthy" : "unhealthy"},
          {"resident", report.resident},
          {"policy", policy_json(report)},
          {"allocations_checked", checked},
          {"vram_bytes_used", used_bytes},
          {"last_check_secs", last_check_json(report)},
          {"usage", usage_json(report)},
          {"pressure", name_of(pressure)},
          {"reasons", reasons_json(report)}};
}

Json stats_json(const HealthReport& report, const HealthDetails& details) {
  Json devices = Json::array();
  for (std::size_t d = 0; d < report.devices.size(); ++d) {
    const DeviceHealth& device = report.devices[d];
    devices.push_back(device_json(device, find(details.devices, d, device.name)));
  }
  Json pools = Json::array();
  for (std::size_t p = 0; p < report.pools.size(); ++p) {
    const PoolHealth& pool = report.pools[p];
    pools.push_back(pool_json(pool, find(details.pools, p, pool.name), report.now_ns));
  }
  return {{"version", KVARENA_VERSION_STRING},
          {"health", health_json(report)},
          {"checks", checks_json(report.checks)},
          {"devices", std::move(devices)},
          {"pools", std::move(pools)}};
}

}  // namespace kvarena
