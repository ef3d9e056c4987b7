#include "health/render/json.hpp"
#include "health/render/metric_family.hpp"

namespace kvarena {

namespace {

/// One figure of a pool.
struct PoolFigure {
  MetricName name;
  double (*value)(const PoolHealth& pool, std::int64_t now_ns);
};

double number(std::int64_t figure) { return static_cast<double>(figure); }
double number(std::uint64_t figure) { return static_cast<double>(figure); }
double number(bool figure) { return figure ? 1.0 : 0.0; }

using Pool = PoolHealth;
using Now = std::int64_t;

constexpr PoolFigure kGauges[] = {
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
       if (p.snapshot.oldest_ticket == kNoTicket) return 0.0;
       return seconds_between(p.oldest_ticket_ns, now_ns);
     }},
    {{"kvarena_snapshot_age_seconds", "Time since the pool's figures were published."},
     [](const Pool& p, Now now_ns) { return seconds_between(p.published_ns, now_ns); }},
    {{"kvarena_pending_work", "Whether a step, a ticket or a request is pending."},
     [](const Pool& p, Now) { return number(p.has_pending_work); }},
    {{"kvarena_waiting_requests", "Requests that wait for memory, as the engine says."},
     [](const Pool& p, Now) { return number(p.waiting_requests); }},
    {{"kvarena_audit_failed", "Whether an audit of the accounts has failed."},
     [](const Pool& p, Now) { return number(!p.snapshot.audit.failure.is_ok()); }},
};

constexpr PoolFigure kCounters[] = {
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

/// A count by state.
struct StateCount {
  BlockState state;
  std::int64_t BlockStats::*count;
};

constexpr StateCount kStates[] = {
    {BlockState::free, &BlockStats::free},       {BlockState::referenced, &BlockStats::referenced},
    {BlockState::fenced, &BlockStats::fenced},   {BlockState::evictable, &BlockStats::evictable},
    {BlockState::offline, &BlockStats::offline},
};

prometheus::MetricFamily blocks_family(const std::vector<PoolHealth>& pools,
                                       const std::vector<std::string>& names) {
  auto family = gauge({"kvarena_blocks", "Blocks by state; each is in exactly one."});
  for (std::size_t p = 0; p < pools.size(); ++p) {
    for (const StateCount& state : kStates) {
      add_sample(family, number(pools[p].snapshot.blocks.*state.count),
                 {{"pool", names[p]}, {"state", name_of(state.state)}});
    }
  }
  return family;
}

void add_pressure_families(const std::vector<PoolHealth>& pools,
                           const std::vector<std::string>& names,
                           std::vector<prometheus::MetricFamily>& families) {
  auto level = gauge({"kvarena_pressure_level", "1 for the level of pressure, 0 for the others."});
  auto entered = counter({"kvarena_pressure_entered_total", "How often a level was entered."});
  for (std::size_t p = 0; p < pools.size(); ++p) {
    for (std::size_t l = 0; l < kNumPressureLevels; ++l) {
      const auto each = static_cast<PressureLevel>(l);
      add_sample(level, number(pools[p].pressure == each),
                 {{"pool", names[p]}, {"level", name_of(each)}});
      add_sample(entered, number(pools[p].pressure_entered[l]),
                 {{"pool", names[p]}, {"level", name_of(each)}});
    }
  }
  families.push_back(std::move(level));
  families.push_back(std::move(entered));
}

}  // namespace

void add_pool_families(const std::vector<PoolHealth>& pools, std::int64_t now_ns,
                       std::vector<prometheus::MetricFamily>& families) {
  const std::vector<std::string> names = unique_names(pools);
  const auto add = [&](prometheus::MetricFamily family, const PoolFigure& figure) {
    for (std::size_t p = 0; p < pools.size(); ++p) {
      add_sample(family, figure.value(pools[p], now_ns), {{"pool", names[p]}});
    }
    families.push_back(std::move(family));
  };
  families.push_back(blocks_family(pools, names));
  for (const PoolFigure& figure : kGauges) add(gauge(figure.name), figure);
  for (const PoolFigure& figure : kCounters) add(counter(figure.name), figure);
  add_pressure_families(pools, names, families);
}

}  // namespace kvarena
