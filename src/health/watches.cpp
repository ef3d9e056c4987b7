#include "health/watches.hpp"

#include "base/excerpt.hpp"
#include "base/log_internal.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace kvarena {
namespace {

/// "unknown" where NVML does not tell.
std::string bytes_or_unknown(const std::optional<std::uint64_t>& bytes) {
  return bytes ? std::to_string(*bytes) : "unknown";
}

/// A limit of 0 is never passed.
bool is_past(std::uint64_t limit_bytes, std::int64_t growth_bytes) noexcept {
  return limit_bytes != 0 && std::cmp_greater(growth_bytes, limit_bytes);
}

double seconds(std::int64_t ns) noexcept { return static_cast<double>(ns) / 1e9; }

/// With groups, new work takes pages: the blocks of one group are of no use to another.
PressureFigures figures_of(const PoolSnapshot& snapshot, const MemoryInfo& memory) noexcept {
  const auto left = [](const auto& stats) {
    return std::max<std::int64_t>(0, stats.available() - stats.reserved);
  };
  const bool in_pages = snapshot.num_groups != 0;
  return {in_pages ? left(snapshot.pages) : left(snapshot.blocks),
          in_pages ? snapshot.pages.num_pages : snapshot.blocks.num_blocks, memory.free_bytes,
          memory.total_bytes};
}

/// Holders that were registered and are no longer.
std::uint64_t departed(const BlockStats& blocks) noexcept {
  return blocks.holders_ever - static_cast<std::uint64_t>(blocks.holders);
}

}  // namespace

// ---- devices ------------------------------------------------------------------------------------

DeviceCheck DeviceWatch::check() {
  DeviceCheck result;
  ResidencyReport residency = verify_residency(device);
  const Result<MemoryInfo> memory = device.memory_info();
  Result<MemoryDrift> drift = measure_drift(device);
  result.seen.allocations_checked = residency.checked;
  result.seen.resident = residency.resident && residency.status.is_ok();
  result.seen.memory = memory ? *memory : last.memory;
  if (drift) {
    warn_of(*drift);
    judge_drift(*drift, result.findings);
    result.seen.drift = *drift;
  }
  for (const ResidencyViolation& violation : residency.violations) {
    result.findings.push_back(
        {{HealthReasonCode::residency_violated, id, violation.record.serial,
          static_cast<std::uint64_t>(violation.placement.place)},
         fmt::format("{} (device {}, policy {})", describe(violation), name, name_of(policy))});
  }
  const Status failed = residency.status.is_ok() ? memory.status() : residency.status;
  if (const std::int32_t lost_to = device.lost_to(); lost_to != 0) {
    const Status lost{StatusCode::device_error, Resource::device, Option::none, lost_to, 0, 0, 0};
    result.seen.resident = false;
    result.findings.push_back({{HealthReasonCode::device_lost, id},
                               fmt::format("device {} is lost, only a new process gets it back: {}",
                                           name, device.describe(lost))});
  } else if (!failed) {
    result.findings.push_back(
        {{HealthReasonCode::device_unreachable, id},
         fmt::format("device {} could not be asked: {}", name, device.describe(failed))});
  }
  return result;
}

void DeviceWatch::judge_drift(const MemoryDrift& drift,
                              std::vector<HealthFinding>& findings) const {
  if (!is_past(drift_.limit_bytes, drift.growth_bytes)) return;
  findings.push_back(
      {{HealthReasonCode::memory_drift, id},
       fmt::format("device {}: {} bytes more are used than were recorded since it was opened, the "
                   "limit is {}; own {}, of which {} not tracked, other processes {}",
                   name, drift.growth_bytes, drift_.limit_bytes, bytes_or_unknown(drift.own_bytes),
                   bytes_or_unknown(drift.context_bytes), bytes_or_unknown(drift.other_bytes))});
}

void DeviceWatch::warn_of(const MemoryDrift& drift) {
  if (!is_past(drift_.warning_bytes, drift.growth_bytes)) {
    drift_logged_bytes_ = 0;
    return;
  }
  // Once, and again each time that as much has come on top.
  const std::int64_t since_logged = drift.growth_bytes - drift_logged_bytes_;
  if (!is_past(drift_.warning_bytes, since_logged)) return;
  drift_logged_bytes_ = drift.growth_bytes;
  log_line(LogLevel::warning,
           "memory drift device=\"{}\" growth_bytes={} driver_used_bytes={} tracked_bytes={} "
           "overhead_bytes={} own_bytes={} context_bytes={} other_bytes={}: memory is used that "
           "nobody recorded",
           name, drift.growth_bytes, drift.driver_used_bytes, drift.tracked_bytes,
           drift.overhead_bytes, bytes_or_unknown(drift.own_bytes),
           bytes_or_unknown(drift.context_bytes), bytes_or_unknown(drift.other_bytes));
}

// ---- pools --------------------------------------------------------------------------------------

PoolWatch::PoolWatch(StepPublisher& its_publisher, std::string its_name, const Device* its_device,
                     std::uint64_t its_id, const PressureGauge& gauge, std::int64_t now_ns)
    : id(its_id),
      publisher(its_publisher),
      name(std::move(its_name)),
      device(its_device),
      sighting(publisher.snapshot(), now_ns),
      gauge_(gauge),
      log_(name),
      progress_ns_(now_ns),
      looked_ns_(now_ns),
      details_ns_(publisher.details().published_ns),
      detailed_ns_(now_ns) {}

bool PoolWatch::has_pending_work() const noexcept {
  return waiting_requests.load(std::memory_order_relaxed) > 0 || publisher.has_pending_work();
}

PoolLook PoolWatch::look(std::int64_t now_ns, const PoolLimits& limits, const MemoryInfo& memory) {
  PoolLook result{.sighting = sighting};
  const PoolSnapshot snapshot = publisher.snapshot();
  const bool has_moved = result.sighting.see(snapshot, now_ns);
  judge_accounts(snapshot, result.findings);
  judge_steps(snapshot, result.findings);
  judge_ticket(snapshot, now_ns - result.sighting.ticket_ns(), limits.ticket_ns, result.findings);
  judge_progress(snapshot, has_moved, now_ns, limits.step_ns, result.findings);
  judge_holders(snapshot, now_ns, limits.holder_grace_ns, result.findings);
  publisher.request_details();  // for the next look
  looked_ns_ = now_ns;
  result.event = gauge_.observe(figures_of(snapshot, memory));
  log_.write(result.event, gauge_.level(), now_ns);
  result.seen = {gauge_.level(), gauge_.by_vram(), gauge_.entered(), now_ns};
  return result;
}

void PoolWatch::judge_accounts(const PoolSnapshot& snapshot,
                               std::vector<HealthFinding>& findings) const {
  constexpr std::uint64_t kAudit = 1;
  constexpr std::uint64_t kBalance = 2;
  if (!snapshot.audit.failure) {
    findings.push_back(
        {{HealthReasonCode::accounts_violated, id, kAudit},
         fmt::format("pool {}: the audit failed after {} blocks: {}", name,
                     snapshot.audit.blocks_checked, describe(snapshot.audit.failure))});
  }
  if (!snapshot.blocks.balanced()) {
    const BlockStats& blocks = snapshot.blocks;
    findings.push_back(
        {{HealthReasonCode::accounts_violated, id, kBalance},
         fmt::format("pool {}: free {} + fenced {} + evictable {} + referenced {} + offline {} "
                     "is not {} at step {}",
                     name, blocks.free, blocks.fenced, blocks.evictable, blocks.referenced,
                     blocks.offline, blocks.num_blocks, snapshot.step)});
  }
  judge_groups(snapshot, findings);
}

/// Checks the accounts of both levels of a pool with groups.
void PoolWatch::judge_groups(const PoolSnapshot& snapshot,
                             std::vector<HealthFinding>& findings) const {
  constexpr std::uint64_t kPages = 3;
  constexpr std::uint64_t kFirstGroup = 4;
  const PageStats& pages = snapshot.pages;
  std::int64_t of_groups = 0;
  for (std::size_t g = 0; g < static_cast<std::size_t>(snapshot.num_groups); ++g) {
    const GroupStats& group = snapshot.groups[g];
    of_groups += group.pages;
    if (group.balanced()) continue;
    findings.push_back(
        {{HealthReasonCode::accounts_violated, id, kFirstGroup + g},
         fmt::format("pool {}: group {}: free {} + fenced {} + evictable {} + referenced {} + "
                     "offline {} is not {} pages x {} at step {}",
                     name, g, group.free, group.fenced, group.evictable, group.referenced,
                     group.offline, group.pages, group.blocks_per_page, snapshot.step)});
  }
  if (pages.balanced() && of_groups == pages.of_groups) return;
  findings.push_back(
      {{HealthReasonCode::accounts_violated, id, kPages},
       fmt::format("pool {}: pages free {} + of groups {} ({} by group) + offline {} is not {} at "
                   "step {}",
                   name, pages.free, pages.of_groups, of_groups, pages.offline, pages.num_pages,
                   snapshot.step)});
}

/// Those that are new: a loss is found once, and stays until it is acknowledged.
void PoolWatch::judge_steps(const PoolSnapshot& snapshot, std::vector<HealthFinding>& findings) {
  const std::uint64_t lost = std::exchange(steps_lost_, snapshot.steps_lost);
  const std::uint64_t missed = std::exchange(missed_launches_, snapshot.missed_launches);
  if (lost == snapshot.steps_lost && missed == snapshot.missed_launches) return;
  findings.push_back(
      {{HealthReasonCode::steps_lost, id, snapshot.steps_lost + snapshot.missed_launches},
       fmt::format("pool {}: {} steps were not taken by the device, and {} launches found no step "
                   "of theirs, as of step {}: a graph was not launched, or twice",
                   name, snapshot.steps_lost, snapshot.missed_launches, snapshot.step)});
}

void PoolWatch::judge_ticket(const PoolSnapshot& snapshot, std::int64_t age_ns,
                             std::int64_t limit_ns, std::vector<HealthFinding>& findings) const {
  const Ticket ticket = snapshot.oldest_ticket;
  if (ticket == kNoTicket || age_ns <= limit_ns) return;
  findings.push_back(
      {{HealthReasonCode::ticket_late, id, ticket.value},
       fmt::format("pool {}: ticket {} has been open for {:.3f} s, the limit is {:.3f} s; {} are "
                   "open, {} blocks wait for them",
                   name, ticket.value, seconds(age_ns), seconds(limit_ns), snapshot.open_tickets,
                   snapshot.blocks.fenced)});
}

void PoolWatch::judge_progress(const PoolSnapshot& snapshot, bool has_moved, std::int64_t now_ns,
                               std::int64_t limit_ns, std::vector<HealthFinding>& findings) {
  const bool is_pending = has_pending_work();
  // An engine that was idle at the last look may have begun just now.
  if (!is_pending || has_moved || !was_pending_) progress_ns_ = now_ns;
  was_pending_ = is_pending;
  if (now_ns - progress_ns_ <= limit_ns) return;
  findings.push_back(
      {{HealthReasonCode::engine_stuck, id},
       fmt::format("pool {}: work is pending and no step has been published for {:.3f} s, the "
                   "limit is {:.3f} s; the last was step {}, {} requests wait",
                   name, seconds(now_ns - progress_ns_), seconds(limit_ns), snapshot.step,
                   waiting_requests.load(std::memory_order_relaxed))});
}

void PoolWatch::judge_holders(const PoolSnapshot& snapshot, std::int64_t now_ns,
                              std::int64_t grace_ns, std::vector<HealthFinding>& findings) {
  const PoolDetails details = publisher.details();
  if (details.published_ns != details_ns_) {
    details_ns_ = details.published_ns;
    detailed_ns_ = looked_ns_;
  }
  // Who was there then is there still when nobody has left since.
  const bool all_are_there = departed(details.explanation.stats) == departed(snapshot.blocks);
  const std::int64_t seen_ns = all_are_there ? now_ns : detailed_ns_;
  const HolderReport* latest = nullptr;
  std::int64_t num_late = 0;
  for (const HolderReport& holder : details.holders) {
    if (holder.deadline_ns == 0 || seen_ns - holder.deadline_ns <= grace_ns) continue;
    ++num_late;
    if (latest == nullptr || holder.deadline_ns < latest->deadline_ns) latest = &holder;
  }
  if (latest == nullptr) return;
  findings.push_back(
      {{HealthReasonCode::holder_late, id},
       fmt::format("pool {}: {} holders are past their deadline; holder {} ({}) by "
                   "{:.3f} s, with {} blocks, as of step {}",
                   name, num_late, latest->holder.value, to_string(*latest),
                   seconds(seen_ns - latest->deadline_ns), latest->references, details.step)});
}

}  // namespace kvarena
