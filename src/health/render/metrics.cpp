#include "health/render/figures.hpp"
#include "health/render/json.hpp"

#include "kvarena/base/version.hpp"

#include <algorithm>

namespace kvarena {
namespace {

/// Each object with its name as a label. A repeated name gets "#2", "#3", ... at its end.
template <class Object>
std::vector<Labelled<Object>> labelled(const std::vector<Object>& objects, const char* label) {
  std::vector<std::string> names;
  std::vector<Labelled<Object>> all;
  for (const Object& object : objects) {
    std::string name = object.name;
    for (int n = 2; std::ranges::count(names, name) > 0; ++n) {
      name = object.name + "#" + std::to_string(n);
    }
    all.push_back({object, {{label, name}}});
    names.push_back(std::move(name));
  }
  return all;
}

// ---- devices ------------------------------------------------------------------------------------

/// A figure of the drift, where it was measured; NVML need not tell its own.
template <class Bytes>
Value drift_of(const DeviceHealth& device, Bytes MemoryDrift::*bytes) {
  if (!device.drift) return std::nullopt;
  const std::optional figure = (*device.drift).*bytes;
  return figure ? number(*figure) : std::nullopt;
}

constexpr Figure<DeviceHealth> kDeviceFigures[] = {
    {{"kvarena_device_resident", "Whether all memory of the device is VRAM, by the last check."},
     [](const DeviceHealth& d, Now) { return number(d.resident); }},
    {{"kvarena_device_allocations_checked", "Allocations whose residency the last check verified."},
     [](const DeviceHealth& d, Now) { return number(d.allocations_checked); }},
    {{"kvarena_device_memory_bytes", "Memory of the device, as the driver says."},
     [](const DeviceHealth& d, Now) { return number(d.memory.total_bytes); }},
    {{"kvarena_device_memory_free_bytes", "Free memory of the device, as the driver says."},
     [](const DeviceHealth& d, Now) { return number(d.memory.free_bytes); }},
    {{"kvarena_staging_bytes", "Pinned host memory for transfers."},
     [](const DeviceHealth& d, Now) { return number(d.usage.staging.bytes); }},
    {{"kvarena_staging_peak_bytes", "The most pinned host memory at any time."},
     [](const DeviceHealth& d, Now) { return number(d.usage.staging.peak_bytes); }},
    {{"kvarena_memory_allocations_total", "Allocations recorded since the start."},
     [](const DeviceHealth& d, Now) { return number(d.usage.allocations_ever); }},
    {{"kvarena_memory_frees_total", "Allocations erased since the start."},
     [](const DeviceHealth& d, Now) { return number(d.usage.frees_ever); }},
    {{"kvarena_drift_bytes", "Driver-reported used memory that the tracker has not recorded."},
     [](const DeviceHealth& d, Now) { return drift_of(d, &MemoryDrift::drift_bytes); }},
    {{"kvarena_drift_growth_bytes", "Growth of the drift since the device was opened."},
     [](const DeviceHealth& d, Now) { return drift_of(d, &MemoryDrift::growth_bytes); }},
    {{"kvarena_own_process_bytes", "Memory of this process on the device, by NVML."},
     [](const DeviceHealth& d, Now) { return drift_of(d, &MemoryDrift::own_bytes); }},
    {{"kvarena_context_bytes",
      "Of it, what is not tracked: the CUDA context and what else is not."},
     [](const DeviceHealth& d, Now) { return drift_of(d, &MemoryDrift::context_bytes); }},
    {{"kvarena_other_processes_bytes", "Memory of other processes on the device, by NVML."},
     [](const DeviceHealth& d, Now) { return drift_of(d, &MemoryDrift::other_bytes); }},
};

constexpr std::pair<MetricName, std::uint64_t MemoryUsage::*> kPurposeFigures[] = {
    {{"kvarena_memory_used_bytes", "Tracked device memory by purpose."}, &MemoryUsage::bytes},
    {{"kvarena_memory_peak_bytes", "The most tracked device memory at any time, by purpose."},
     &MemoryUsage::peak_bytes},
    {{"kvarena_memory_live_allocations", "Tracked allocations of device memory by purpose."},
     &MemoryUsage::count},
};

void add_device_families(const std::vector<DeviceHealth>& all, Families& families) {
  const auto devices = labelled(all, "device");
  add_figures(kDeviceFigures, devices, 0, families);
  for (const auto& [name, value] : kPurposeFigures) {
    auto& family = families.emplace_back(family_of(name));
    for (const auto& [device, labels] : devices) {
      for (std::size_t p = 0; p < kNumMemoryPurposes; ++p) {
        add_sample(family, number(device.usage.by_purpose[p].*value),
                   with(labels, "purpose", name_of(static_cast<MemoryPurpose>(p))));
      }
    }
  }
  auto& policies = families.emplace_back(
      family_of({"kvarena_residency_policy", "1 for the policy that holds, 0 for the other."}));
  for (const auto& [device, labels] : devices) {
    for (const auto policy : {ResidencyPolicy::vram_only, ResidencyPolicy::allow_host}) {
      add_sample(policies, device.policy == policy ? 1 : 0,
                 with(labels, "policy", name_of(policy)));
    }
  }
}

// ---- pools --------------------------------------------------------------------------------------

using Pool = PoolHealth;

constexpr Figure<PoolHealth> kPoolFigures[] = {
    {{"kvarena_pool_blocks", "Blocks in the pool; the states of kvarena_blocks add up to it."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.num_blocks); }},
    {{"kvarena_blocks_reserved", "Blocks promised to holders, still free or evictable."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.reserved); }},
    {{"kvarena_blocks_watermark", "Blocks that admission leaves available."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.watermark); }},
    {{"kvarena_blocks_peak", "The most blocks that were not free at any time."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.peak_allocated); }},
    {{"kvarena_block_references", "Block references of all holders."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.references); }},
    {{"kvarena_fence_entries", "Block references that wait for tickets."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.fence_entries); }},
    {{"kvarena_holders", "Registered holders."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.holders); }},
    {{"kvarena_sequences", "Sequences that exist."},
     [](const Pool& p, Now) { return number(p.snapshot.tables.sequences); }},
    {{"kvarena_tokens", "Tokens of all sequences."},
     [](const Pool& p, Now) { return number(p.snapshot.tables.tokens); }},
    {{"kvarena_waste_tokens", "Token slots past the end of their sequence."},
     [](const Pool& p, Now) { return number(p.snapshot.tables.waste_tokens); }},
    {{"kvarena_table_entries", "Block table entries in use."},
     [](const Pool& p, Now) { return number(p.snapshot.tables.entries); }},
    {{"kvarena_table_pages_used", "Pages of block table entries in use."},
     [](const Pool& p, Now) { return number(p.snapshot.tables.pages_used); }},
    {{"kvarena_table_pages", "Pages of block table entries there are."},
     [](const Pool& p, Now) { return number(p.snapshot.tables.pages_total); }},
    {{"kvarena_open_tickets", "Tickets that have not retired."},
     [](const Pool& p, Now) { return number(p.snapshot.open_tickets); }},
    {{"kvarena_oldest_ticket_age_seconds", "Age of the oldest open ticket; 0 without one."},
     [](const Pool& p, Now now_ns) {
       const bool any = p.snapshot.oldest_ticket != kNoTicket;
       return number(any ? seconds_between(p.oldest_ticket_ns, now_ns) : 0.0);
     }},
    {{"kvarena_snapshot_age_seconds", "Time since the pool's figures were published."},
     [](const Pool& p, Now now_ns) { return number(seconds_between(p.published_ns, now_ns)); }},
    {{"kvarena_pending_work", "Whether a step, a ticket or a request is pending."},
     [](const Pool& p, Now) { return number(p.has_pending_work); }},
    {{"kvarena_waiting_requests", "Requests that wait for memory, as the engine says."},
     [](const Pool& p, Now) { return number(p.waiting_requests); }},
    {{"kvarena_audit_failed", "Whether an audit of the accounts has failed."},
     [](const Pool& p, Now) { return number(!p.snapshot.audit.failure.is_ok()); }},
    {{"kvarena_steps_total", "Steps ended."},
     [](const Pool& p, Now) { return number(p.snapshot.step); }},
    {{"kvarena_steps_lost_total", "Steps that the device did not take."},
     [](const Pool& p, Now) { return number(p.snapshot.steps_lost); }},
    {{"kvarena_missed_launches_total", "Launches on the device that found no step of theirs."},
     [](const Pool& p, Now) { return number(p.snapshot.missed_launches); }},
    {{"kvarena_holders_registered_total", "Holders registered."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.holders_ever); }},
    {{"kvarena_block_allocations_total", "Blocks handed out."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.allocations); }},
    {{"kvarena_block_releases_total", "Block references given up."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.releases); }},
    {{"kvarena_evictions_total", "Evictable blocks handed out."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.evictions); }},
    {{"kvarena_exhaustions_total", "Calls refused for want of blocks."},
     [](const Pool& p, Now) { return number(p.snapshot.blocks.exhaustions); }},
    {{"kvarena_preemptions_total", "Sequences preempted, as the engine says."},
     [](const Pool& p, Now) { return number(p.preemptions); }},
    {{"kvarena_sequences_created_total", "Sequences created."},
     [](const Pool& p, Now) { return number(p.snapshot.tables.sequences_ever); }},
    {{"kvarena_copies_on_write_total", "Shared blocks copied before a write."},
     [](const Pool& p, Now) { return number(p.snapshot.tables.copies_on_write); }},
    {{"kvarena_audit_blocks_total", "Blocks recounted by the audit of the accounts."},
     [](const Pool& p, Now) { return number(p.snapshot.audit.blocks_checked); }},
    {{"kvarena_audit_passes_total", "Complete audits of all blocks."},
     [](const Pool& p, Now) { return number(p.snapshot.audit.passes); }},
};

constexpr State<BlockStats> kStates[] = {
    {"free", &BlockStats::free},       {"referenced", &BlockStats::referenced},
    {"fenced", &BlockStats::fenced},   {"evictable", &BlockStats::evictable},
    {"offline", &BlockStats::offline},
};

void add_pressure_families(const LabelledPools& pools, Families& families) {
  auto level =
      family_of({"kvarena_pressure_level", "1 for the level of pressure, 0 for the others."});
  auto entered = family_of({"kvarena_pressure_entered_total", "How often a level was entered."});
  for (const auto& [pool, labels] : pools) {
    for (std::size_t l = 0; l < kNumPressureLevels; ++l) {
      const auto each = static_cast<PressureLevel>(l);
      add_sample(level, number(pool.pressure == each), with(labels, "level", name_of(each)));
      add_sample(entered, number(pool.pressure_entered[l]), with(labels, "level", name_of(each)));
    }
  }
  families.push_back(std::move(level));
  families.push_back(std::move(entered));
}

void add_pool_families(const std::vector<PoolHealth>& all, Now now_ns, Families& families) {
  const LabelledPools pools = labelled(all, "pool");
  std::vector<Labelled<BlockStats>> blocks;
  for (const auto& [pool, labels] : pools) blocks.push_back({pool.snapshot.blocks, labels});
  add_states({"kvarena_blocks", "Blocks by state; each is in exactly one."}, kStates, blocks,
             families);
  add_figures(kPoolFigures, pools, now_ns, families);
  add_pressure_families(pools, families);
  add_group_families(pools, families);
  add_prefix_families(pools, families);
}

// ---- the process --------------------------------------------------------------------------------

void add_single(const MetricName& name, Value value, Families& families) {
  add_sample(families.emplace_back(family_of(name)), value);
}

MetricFamily reasons_family(const HealthReport& report) {
  auto family =
      family_of({"kvarena_unhealthy_reasons", "Reasons why the process is unhealthy, by code."});
  for (int c = 0; c <= static_cast<int>(HealthReasonCode::monitor_stopped); ++c) {
    const auto code = static_cast<HealthReasonCode>(c);
    const auto count =
        std::count_if(report.reasons.begin(), report.reasons.end(),
                      [code](const HealthReason& reason) { return reason.code == code; });
    add_sample(family, static_cast<double>(count), {{"code", std::string(name_of(code))}});
  }
  return family;
}

void add_check_families(const HealthReport& report, Families& families) {
  const CheckFigures& checks = report.checks;
  MetricFamily durations{
      "kvarena_check_duration_seconds", "Time that health checks took.", MetricType::summary, {}};
  const double sum = seconds_between(0, checks.total_duration_ns);
  durations.samples.push_back({.labels = {}, .value = sum, .count = checks.completed});
  families.push_back(std::move(durations));
  add_single({"kvarena_last_check_duration_seconds", "Time the last check took."},
             seconds_between(0, checks.last_duration_ns), families);
  add_single(
      {"kvarena_failed_checks_total", "Health checks that found something wrong themselves."},
      static_cast<double>(checks.failed), families);
  if (checks.completed == 0) return;
  add_single({"kvarena_last_check_age_seconds", "Time since the last health check ended."},
             seconds_between(checks.last_ended_ns, report.now_ns), families);
}

}  // namespace

std::vector<MetricFamily> metric_families(const HealthReport& report) {
  Families families;
  auto build = family_of({"kvarena_build_info", "1, with the version of the library."});
  add_sample(build, 1, {{"version", KVARENA_VERSION_STRING}});
  families.push_back(std::move(build));
  add_single({"kvarena_healthy", "Whether there is no reason to distrust the process."},
             report.healthy ? 1 : 0, families);
  add_single(
      {"kvarena_resident", "Whether all devices hold KV and weights in VRAM, by the last check."},
      report.resident ? 1 : 0, families);
  families.push_back(reasons_family(report));
  add_check_families(report, families);
  add_device_families(report.devices, families);
  add_pool_families(report.pools, report.now_ns, families);
  std::erase_if(families, [](const auto& family) { return family.samples.empty(); });
  return families;
}

std::string metrics_text(const HealthReport& report) { return to_text(metric_families(report)); }

}  // namespace kvarena
