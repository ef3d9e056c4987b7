#include "tools/monitor/stats_view.hpp"

#include "tools/option_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace kvarena::tools {

namespace {

constexpr int kBarWidth = 48;

std::string age(double seconds) { return fmt::format("{:.1f} s", seconds); }

/// What counters of a pool grew by a second: "-" without an earlier look, and where the server has
/// started anew and counts from 0.
class Rates {
 public:
  Rates(const StatsPool& now, const EarlierStats& earlier) : now_(now) {
    if (earlier.stats == nullptr || earlier.elapsed_s <= 0.0) return;
    const auto& pools = earlier.stats->pools;
    const auto same = std::find_if(pools.begin(), pools.end(),
                                   [&](const StatsPool& pool) { return pool.name == now.name; });
    if (same == pools.end()) return;
    before_ = &*same;
    elapsed_s_ = earlier.elapsed_s;
  }
  bool are_known() const { return before_ != nullptr; }
  std::string of(std::int64_t StatsPool::*counter) const {
    return are_known() ? rate(now_.*counter, before_->*counter) : "-";
  }
  std::string of(std::int64_t StatsBlocks::*counter) const {
    return are_known() ? rate(now_.blocks.*counter, before_->blocks.*counter) : "-";
  }

 private:
  std::string rate(std::int64_t now, std::int64_t before) const {
    if (now < before) return "-";
    return fmt::format("{:.1f}", static_cast<double>(now - before) / elapsed_s_);
  }

  const StatsPool& now_;
  const StatsPool* before_ = nullptr;
  double elapsed_s_ = 0.0;
};

std::string residency(const StatsDocument& stats) {
  if (stats.devices.empty()) return "resident - (no device is watched)";
  return fmt::format("resident {}{}", stats.resident ? "yes" : "no",
                     stats.policy.empty() ? "" : " (" + stats.policy + ")");
}

void add_health(const std::string& title, const StatsDocument& stats, MonitorFrame& frame) {
  frame.healthy = stats.status == "healthy";
  frame.lines.push_back(fmt::format(
      "{}  {}  {}  {}", title, stats.status, residency(stats),
      stats.checked_s ? "checked " + age(*stats.checked_s) + " ago" : "not checked yet"));
  for (const StatsReason& reason : stats.reasons) {
    frame.lines.push_back(
        fmt::format("  {} for {}: {}", reason.code, age(reason.since_s), reason.text));
  }
}

void add_device(const StatsDevice& device, MonitorFrame& frame) {
  frame.lines.push_back(fmt::format("{}  {} free of {}", device.name,
                                    human_bytes(device.free_bytes),
                                    human_bytes(device.total_bytes)));
  for (const StatsUsage& usage : device.usage) {
    frame.lines.push_back(fmt::format("  {:<20} {:>11}  peak {:>11}", usage.purpose,
                                      human_bytes(usage.bytes), human_bytes(usage.peak_bytes)));
  }
  if (!device.drift) return;
  frame.lines.push_back(
      fmt::format("  driver, at the check: {} used, {} tracked, drift grown by {} bytes",
                  human_bytes(device.drift->driver_used_bytes),
                  human_bytes(device.drift->tracked_bytes), grouped(device.drift->growth_bytes)));
}

std::string pressure(const StatsPool& pool) {
  if (pool.pressure_cause.empty()) return pool.pressure;
  return fmt::format("{} ({}{})", pool.pressure, pool.pressure_cause,
                     pool.pressure_age_s ? ", " + age(*pool.pressure_age_s) + " ago" : "");
}

double percent(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

void add_reasons(const char* what, const std::vector<StatsPrefix::Reason>& reasons,
                 MonitorFrame& frame) {
  std::string text;
  for (const StatsPrefix::Reason& reason : reasons) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", grouped(reason.count), reason.name);
  }
  if (!text.empty()) frame.lines.push_back(fmt::format("  {}: {}", what, text));
}

void add_prefix(const StatsPrefix& prefix, MonitorFrame& frame) {
  frame.lines.push_back(fmt::format(
      "  prefix cache: {} blocks, {:.1f} % of {} prompt tokens found, {} blocks evicted",
      grouped(prefix.published), percent(prefix.hit_tokens, prefix.query_tokens),
      grouped(prefix.query_tokens), grouped(prefix.evicted)));
  add_reasons("not found, most often", prefix.misses, frame);
  add_reasons("blocks removed, most often", prefix.removals, frame);
  if (prefix.ghosts.empty()) return;
  std::string sizes;
  for (const StatsPrefix::Ghost& ghost : prefix.ghosts) {
    sizes += fmt::format("{}{:.1f} % with {:g}", sizes.empty() ? "" : ", ", 100.0 * ghost.hit_rate,
                         ghost.pools);
  }
  frame.lines.push_back(
      fmt::format("  blocks it would find by {}, in pools: {}", prefix.ghost_policy, sizes));
}

/// Says when states do not add up, as they do in a pool that is whole.
void add_sum(std::int64_t sum, std::int64_t total, MonitorFrame& frame) {
  if (sum == total) return;
  frame.lines.push_back(fmt::format("  states add up to {} of {}", grouped(sum), grouped(total)));
}

/// The blocks of a pool without groups.
void add_blocks(const StatsBlocks& blocks, MonitorFrame& frame) {
  frame.lines.push_back(fmt::format("  [{}]", block_bar(blocks, kBarWidth)));
  frame.lines.push_back(fmt::format(
      "  {} blocks: {} referenced #, {} fenced ~, {} evictable +, {} offline x, {} free .",
      grouped(blocks.total), grouped(blocks.referenced), grouped(blocks.fenced),
      grouped(blocks.evictable), grouped(blocks.offline), grouped(blocks.free)));
  add_sum(blocks.sum_of_states(), blocks.total, frame);
}

/// A row for the pages of a pool with groups.
void add_pages(const StatsPages& pages, MonitorFrame& frame) {
  const std::int64_t in_use = pages.of_groups - pages.evictable;
  StatsBlocks states;
  states.total = pages.total;
  states.referenced = in_use;
  states.evictable = pages.evictable;
  states.offline = pages.offline;
  states.free = pages.free;
  frame.lines.push_back(fmt::format("  [{}]", block_bar(states, kBarWidth)));
  frame.lines.push_back(fmt::format(
      "  {} pages{}: {} in use #, {} evictable +, {} offline x, {} free .", grouped(pages.total),
      pages.page_bytes ? " of " + human_bytes(*pages.page_bytes) : "", grouped(in_use),
      grouped(pages.evictable), grouped(pages.offline), grouped(pages.free)));
  add_sum(states.sum_of_states(), pages.total, frame);
}

/// A row for a group.
void add_group(const StatsGroup& group, MonitorFrame& frame) {
  const StatsBlocks& blocks = group.blocks;
  frame.lines.push_back(fmt::format(
      "  group {} ({}): {} pages, {} blocks of {}: {} referenced, {} fenced, {} evictable, {} "
      "offline, {} free ({} stranded)",
      group.group, group.kind, grouped(group.pages), grouped(blocks.total),
      human_bytes(group.block_bytes), grouped(blocks.referenced), grouped(blocks.fenced),
      grouped(blocks.evictable), grouped(blocks.offline), grouped(blocks.free),
      grouped(group.stranded)));
  add_sum(blocks.sum_of_states(), blocks.total, frame);
}

void add_pool(const StatsPool& pool, const Rates& rates, MonitorFrame& frame) {
  frame.lines.push_back(
      fmt::format("pool {}  step {}  pressure {}", pool.name, grouped(pool.step), pressure(pool)));
  if (pool.pages) {
    add_pages(*pool.pages, frame);
    for (const StatsGroup& group : pool.groups) add_group(group, frame);
  } else {
    add_blocks(pool.blocks, frame);
  }
  frame.lines.push_back(fmt::format(
      "  {} tokens in {} sequences, {} requests wait; {} open tickets{}", grouped(pool.tokens),
      grouped(pool.sequences), grouped(pool.waiting_requests), grouped(pool.open_tickets),
      pool.oldest_ticket_s ? ", the oldest " + age(*pool.oldest_ticket_s) : ""));
  if (pool.prefix) add_prefix(*pool.prefix, frame);
  if (!rates.are_known()) return;
  frame.lines.push_back(fmt::format(
      "  a second: {} steps, {} blocks handed out, {} evictions, {} exhaustions, {} preemptions",
      rates.of(&StatsPool::step), rates.of(&StatsBlocks::allocations),
      rates.of(&StatsBlocks::evictions), rates.of(&StatsBlocks::exhaustions),
      rates.of(&StatsPool::preemptions)));
}

/// The names are those of docs/reference/command.md: logs are searched for them.
void add_health(const StatsDocument& stats, LineFields& line) {
  std::string codes;
  for (const StatsReason& reason : stats.reasons) {
    codes += (codes.empty() ? "" : ",") + reason.code;
  }
  line.add("reasons", codes.empty() ? "-" : codes);
  line.add("resident", stats.devices.empty() ? "-" : stats.resident ? "yes" : "no");
  line.add("checked", stats.checked_s ? fmt::format("{:.1f}s", *stats.checked_s) : "-");
  line.add_bytes("vram", stats.vram_bytes_used);
  for (const StatsUsage& usage : stats.usage) line.add_bytes(usage.purpose, usage.bytes);
}

void add_pool(const StatsPool& pool, const Rates& rates, LineFields& line) {
  line.add("pool", pool.name);
  line.add("step", fmt::format("{}", pool.step));
  line.add("pressure", pool.pressure);
  if (!pool.pressure_cause.empty()) line.add("cause", pool.pressure_cause);
  line.add("blocks", fmt::format("{}/{}", pool.blocks.total - pool.blocks.free, pool.blocks.total));
  if (pool.pages) {
    line.add("pages",
             fmt::format("{}/{}", pool.pages->total - pool.pages->free, pool.pages->total));
  }
  line.add("tokens", fmt::format("{}", pool.tokens));
  line.add("sequences", fmt::format("{}", pool.sequences));
  line.add("waiting", fmt::format("{}", pool.waiting_requests));
  line.add("tickets", fmt::format("{}", pool.open_tickets));
  if (pool.prefix) {
    line.add("prefix-hits",
             fmt::format("{:.1f}%", percent(pool.prefix->hit_tokens, pool.prefix->query_tokens)));
  }
  line.add("steps/s", rates.of(&StatsPool::step));
  line.add("allocations/s", rates.of(&StatsBlocks::allocations));
  line.add("evictions/s", rates.of(&StatsBlocks::evictions));
  line.add("exhaustions/s", rates.of(&StatsBlocks::exhaustions));
  line.add("preemptions/s", rates.of(&StatsPool::preemptions));
}

}  // namespace

std::string block_bar(const StatsBlocks& blocks, int width) {
  using Count = std::int64_t StatsBlocks::*;
  constexpr std::array<std::pair<Count, char>, 5> kStates{{{&StatsBlocks::referenced, '#'},
                                                           {&StatsBlocks::fenced, '~'},
                                                           {&StatsBlocks::evictable, '+'},
                                                           {&StatsBlocks::offline, 'x'},
                                                           {&StatsBlocks::free, '.'}}};
  const auto size = static_cast<std::size_t>(width);
  std::string bar;
  double sum = 0.0;
  for (const auto& [count, letter] : kStates) {
    sum += static_cast<double>(blocks.*count);
    const double share = blocks.total > 0 ? sum / static_cast<double>(blocks.total) : 0.0;
    const double end = std::clamp(share, 0.0, 1.0) * width + 0.5;
    bar.resize(std::max(bar.size(), static_cast<std::size_t>(end)), letter);
  }
  bar.resize(size, ' ');
  return bar;
}

MonitorFrame frame_of_stats(const std::string& title, const StatsDocument& stats,
                            const EarlierStats& earlier) {
  MonitorFrame frame;
  LineFields line(stats.status);
  add_health(title, stats, frame);
  add_health(stats, line);
  for (const StatsDevice& device : stats.devices) {
    add_device(device, frame);
    line.add("device", device.name);
    line.add_bytes("free", device.free_bytes);
    line.add_bytes("total", device.total_bytes);
  }
  for (const StatsPool& pool : stats.pools) {
    const Rates rates(pool, earlier);
    add_pool(pool, rates, frame);
    add_pool(pool, rates, line);
  }
  frame.line = line.text();
  return frame;
}

}  // namespace kvarena::tools
