#include "health/pool_watch.hpp"

#include "base/excerpt.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

namespace kvarena {
namespace {

double seconds(std::int64_t ns) noexcept { return static_cast<double>(ns) / 1e9; }

PressureFigures figures_of(const BlockStats& blocks, const MemoryInfo& memory) noexcept {
  return {std::max<std::int64_t>(0, blocks.available() - blocks.reserved), blocks.num_blocks,
          memory.free_bytes, memory.total_bytes};
}

/// Holders that were registered and are no longer.
std::uint64_t departed(const BlockStats& blocks) noexcept {
  return blocks.holders_ever - static_cast<std::uint64_t>(blocks.holders);
}

}  // namespace

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
  result.event = gauge_.observe(figures_of(snapshot.blocks, memory));
  log_.write(result.event, gauge_.level(), now_ns);
  result.seen = {gauge_.level(), gauge_.by_vram(), gauge_.entered(), now_ns};
  return result;
}

void PoolWatch::judge_accounts(const PoolSnapshot& snapshot, std::vector<Finding>& findings) const {
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
}

/// Those that are new: a loss is found once, and stays until it is acknowledged.
void PoolWatch::judge_steps(const PoolSnapshot& snapshot, std::vector<Finding>& findings) {
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
                             std::int64_t limit_ns, std::vector<Finding>& findings) const {
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
                               std::int64_t limit_ns, std::vector<Finding>& findings) {
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
                              std::int64_t grace_ns, std::vector<Finding>& findings) {
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
