#include "stats_view.hpp"

#include "quantity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace kvarena::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kBarWidth = 48;

std::int64_t count(const Json& object, const char* key) {
  return object.at(key).get<std::int64_t>();
}

std::string bytes(const Json& object, const char* key) { return human_bytes(count(object, key)); }

std::string seconds(const Json& value) { return fmt::format("{:.1f} s", value.get<double>()); }

/// What a counter grew by a second; a server that has started anew counts from 0.
std::string rate(const Json& now, const Json& before, const char* key, double elapsed_s) {
  const auto grown = static_cast<double>(count(now, key) - count(before, key));
  return grown < 0.0 ? "-" : fmt::format("{:.1f}", grown / elapsed_s);
}

void add_health(const std::string& title, const Json& health, MonitorFrame& frame) {
  const auto status = health.at("status").get<std::string>();
  const bool resident = health.at("resident").get<bool>();
  const Json& policy = health.at("policy");
  frame.healthy = status == "healthy";
  const Json& checked = health.at("last_check_secs");
  frame.lines.push_back(fmt::format(
      "{}  {}  resident {}{}  {}", title, status, resident ? "yes" : "no",
      policy.is_null() ? "" : " (" + policy.get<std::string>() + ")",
      checked.is_null() ? std::string("not checked yet") : "checked " + seconds(checked) + " ago"));
  frame.line = status;
  for (const Json& reason : health.at("reasons")) {
    frame.lines.push_back(fmt::format("  {} for {}: {}", reason.at("code").get<std::string>(),
                                      seconds(reason.at("since_secs")),
                                      reason.at("text").get<std::string>()));
    frame.line.append(" ").append(reason.at("code").get<std::string>());
  }
}

void add_device(const Json& device, MonitorFrame& frame) {
  const Json& memory = device.at("memory");
  frame.lines.push_back(fmt::format("{}  {} free of {}", device.at("name").get<std::string>(),
                                    bytes(memory, "free_bytes"), bytes(memory, "total_bytes")));
  const Json& usage = device.at("usage");
  for (const auto& [purpose, figures] : usage.at("by_purpose").items()) {
    frame.lines.push_back(fmt::format("  {:<20} {:>11}  peak {:>11}", purpose,
                                      bytes(figures, "bytes"), bytes(figures, "peak_bytes")));
  }
  const Json& staging = usage.at("staging");
  frame.lines.push_back(fmt::format("  {:<20} {:>11}  peak {:>11}", "pinned staging",
                                    bytes(staging, "bytes"), bytes(staging, "peak_bytes")));
  const Json& drift = device.at("drift");
  if (drift.is_null()) return;
  frame.lines.push_back(
      fmt::format("  driver, at the check: {} used, {} tracked, drift grown by {} bytes",
                  bytes(drift, "driver_used_bytes"), bytes(drift, "tracked_bytes"),
                  grouped(count(drift, "growth_bytes"))));
}

void add_rates(const Json& pool, const Json& before, double elapsed_s, MonitorFrame& frame) {
  if (before.is_null() || elapsed_s <= 0.0) return;
  const Json& blocks = pool.at("blocks");
  const Json& blocks_before = before.at("blocks");
  frame.lines.push_back(fmt::format(
      "  a second: {} steps, {} blocks handed out, {} evictions, {} exhaustions, {} preemptions",
      rate(pool, before, "step", elapsed_s), rate(blocks, blocks_before, "allocations", elapsed_s),
      rate(blocks, blocks_before, "evictions", elapsed_s),
      rate(blocks, blocks_before, "exhaustions", elapsed_s),
      rate(pool, before, "preemptions", elapsed_s)));
}

void add_pool(const Json& pool, const Json& before, double elapsed_s, MonitorFrame& frame) {
  const Json& blocks = pool.at("blocks");
  const Json& tables = pool.at("tables");
  const Json& tickets = pool.at("tickets");
  const auto name = pool.at("name").get<std::string>();
  const auto level = pool.at("pressure").at("level").get<std::string>();
  frame.lines.push_back(
      fmt::format("pool {}  step {}  pressure {}", name, grouped(count(pool, "step")), level));
  frame.lines.push_back(fmt::format("  [{}]", block_bar(blocks, kBarWidth)));
  frame.lines.push_back(fmt::format(
      "  {} blocks: {} referenced #, {} fenced ~, {} evictable +, {} offline x, {} free .",
      grouped(count(blocks, "total")), grouped(count(blocks, "referenced")),
      grouped(count(blocks, "fenced")), grouped(count(blocks, "evictable")),
      grouped(count(blocks, "offline")), grouped(count(blocks, "free"))));
  frame.lines.push_back(fmt::format(
      "  {} tokens in {} sequences, {} requests wait; {} open tickets{}",
      grouped(count(tables, "tokens")), grouped(count(tables, "sequences")),
      grouped(count(pool, "waiting_requests")), count(tickets, "open"),
      tickets.at("oldest").is_null() ? ""
                                     : ", the oldest " + seconds(tickets.at("oldest_age_secs"))));
  add_rates(pool, before, elapsed_s, frame);
  frame.line +=
      fmt::format("  {}: step {} pressure {} blocks {}/{} tokens {} sequences {} waiting {}", name,
                  count(pool, "step"), level, count(blocks, "total") - count(blocks, "free"),
                  count(blocks, "total"), count(tables, "tokens"), count(tables, "sequences"),
                  count(pool, "waiting_requests"));
}

/// The pool of that name in an earlier answer, or null.
Json pool_before(const Json& before, const Json& name) {
  if (before.is_null()) return nullptr;
  for (const Json& pool : before.at("pools")) {
    if (pool.at("name") == name) return pool;
  }
  return nullptr;
}

}  // namespace

std::string block_bar(const Json& blocks, int width) {
  constexpr std::array<std::pair<const char*, char>, 5> kStates{
      {{"referenced", '#'}, {"fenced", '~'}, {"evictable", '+'}, {"offline", 'x'}, {"free", '.'}}};
  const std::int64_t total = count(blocks, "total");
  if (total <= 0) return std::string(static_cast<std::size_t>(width), ' ');
  std::string bar;
  std::int64_t sum = 0;
  for (const auto& [state, letter] : kStates) {
    sum += count(blocks, state);
    const auto end = static_cast<double>(sum) / static_cast<double>(total) * width + 0.5;
    bar.resize(std::max(bar.size(), static_cast<std::size_t>(end)), letter);
  }
  return bar;
}

MonitorFrame frame_of_stats(const std::string& title, const Json& stats, const Json& before,
                            double elapsed_s) {
  MonitorFrame frame;
  add_health(title, stats.at("health"), frame);
  for (const Json& device : stats.at("devices")) add_device(device, frame);
  for (const Json& pool : stats.at("pools")) {
    add_pool(pool, pool_before(before, pool.at("name")), elapsed_s, frame);
  }
  frame.document = stats;
  return frame;
}

}  // namespace kvarena::tools
