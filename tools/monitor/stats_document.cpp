#include "tools/monitor/stats_view.hpp"

#include "base/excerpt.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string_view>

namespace kvarena::tools {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxTextBytes = 1000;
constexpr std::int64_t kMaxFigure = std::int64_t{1} << 60;  // sums of a few fit
constexpr double kMaxSeconds = 1e10;
constexpr double kMaxRate = 100.0;
constexpr std::size_t kMaxGhosts = 8;
constexpr std::size_t kMaxGroups = 32;
constexpr std::size_t kMaxReasons = 3;
/// What servers of earlier versions, which do not tell their policy, are taken to have.
constexpr std::string_view kUsualPolicy = "tail-first";

const Json& member(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) throw NotStats(fmt::format("it has no \"{}\"", key));
  return *found;
}

const Json& member_of_type(const Json& object, const char* key, Json::value_t type) {
  const Json& value = member(object, key);
  if (value.type() != type) {
    throw NotStats(fmt::format("\"{}\" is no {}", key, Json(type).type_name()));
  }
  return value;
}

std::string shown(const std::string& text) { return printable(text.substr(0, kMaxTextBytes)); }

std::string text(const Json& object, const char* key) {
  return shown(member_of_type(object, key, Json::value_t::string).get_ref<const std::string&>());
}

std::int64_t signed_count(const Json& object, const char* key) {
  const Json& value = member(object, key);
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
  if (!fits) throw NotStats(fmt::format("\"{}\" is not a whole number of 63 bits", key));
  return value.get<std::int64_t>();
}

std::int64_t count(const Json& object, const char* key) {
  const std::int64_t value = signed_count(object, key);
  if (value < 0) throw NotStats(fmt::format("\"{}\" is {}, below 0", key, value));
  return value;
}

/// A figure of accounts that may be damaged: any whole number of 64 bits, cut to what sums hold.
std::int64_t figure(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (value.is_number_unsigned()) {
    return static_cast<std::int64_t>(
        std::min(value.get<std::uint64_t>(), static_cast<std::uint64_t>(kMaxFigure)));
  }
  return std::clamp(signed_count(object, key), -kMaxFigure, kMaxFigure);
}

double seconds(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (value.is_number() && value.get<double>() >= 0.0 && value.get<double>() <= kMaxSeconds) {
    return value.get<double>();
  }
  throw NotStats(fmt::format("\"{}\" is no number of seconds", key));
}

/// Null is nothing.
std::optional<double> maybe_seconds(const Json& object, const char* key) {
  return member(object, key).is_null() ? std::nullopt : std::optional(seconds(object, key));
}

const Json& object_of(const Json& object, const char* key) {
  return member_of_type(object, key, Json::value_t::object);
}

const Json& array_of(const Json& object, const char* key) {
  return member_of_type(object, key, Json::value_t::array);
}

StatsDevice read_device(const Json& json) {
  StatsDevice device;
  device.name = text(json, "name");
  const Json& memory = object_of(json, "memory");
  device.total_bytes = count(memory, "total_bytes");
  device.free_bytes = count(memory, "free_bytes");
  const Json& usage = object_of(json, "usage");
  for (const auto& [purpose, figures] : object_of(usage, "by_purpose").items()) {
    device.usage.push_back({shown(purpose), count(figures, "bytes"), count(figures, "peak_bytes")});
  }
  const Json& staging = object_of(usage, "staging");
  device.usage.push_back({"pinned staging", count(staging, "bytes"), count(staging, "peak_bytes")});
  if (!member(json, "drift").is_null()) {
    const Json& drift = object_of(json, "drift");
    device.drift = {count(drift, "driver_used_bytes"), count(drift, "tracked_bytes"),
                    signed_count(drift, "growth_bytes")};
  }
  return device;
}

StatsBlocks read_blocks(const Json& json) {
  return {.total = figure(json, "total"),
          .referenced = figure(json, "referenced"),
          .fenced = figure(json, "fenced"),
          .evictable = figure(json, "evictable"),
          .offline = figure(json, "offline"),
          .free = figure(json, "free"),
          .allocations = figure(json, "allocations"),
          .evictions = figure(json, "evictions"),
          .exhaustions = figure(json, "exhaustions")};
}

void read_pressure(const Json& json, StatsPool& pool) {
  pool.pressure = text(json, "level");
  // Servers of earlier versions do not tell these.
  if (json.contains("cause") && !json["cause"].is_null()) pool.pressure_cause = text(json, "cause");
  if (json.contains("age_secs")) pool.pressure_age_s = maybe_seconds(json, "age_secs");
}

double rate(const Json& object, const char* key) {
  const Json& value = member(object, key);
  if (value.is_number() && value.get<double>() >= 0.0 && value.get<double>() <= kMaxRate) {
    return value.get<double>();
  }
  throw NotStats(fmt::format("\"{}\" is no number 0 .. {}", key, kMaxRate));
}

/// The most frequent of some counts by reason.
std::vector<StatsPrefix::Reason> read_reasons(const Json& counts,
                                              std::initializer_list<std::string_view> left_out) {
  std::vector<StatsPrefix::Reason> reasons;
  for (const auto& [name, number] : counts.items()) {
    if (std::ranges::find(left_out, name) != left_out.end()) continue;
    const std::int64_t times = count(counts, name.c_str());
    if (times > 0) reasons.push_back({shown(name), times});
  }
  std::ranges::stable_sort(reasons, std::greater(), &StatsPrefix::Reason::count);
  if (reasons.size() > kMaxReasons) reasons.resize(kMaxReasons);
  return reasons;
}

/// A pool whose policy no ghost plays has those of the usual one.
void read_ghosts(const Json& rates, std::string_view policy, StatsPrefix& prefix) {
  prefix.ghost_policy = policy;
  for (const Json& ghost : rates) {
    if (text(ghost, "policy") != policy) continue;
    prefix.ghosts.push_back({rate(ghost, "pools"), rate(ghost, "block_hit_rate")});
    if (prefix.ghosts.size() == kMaxGhosts) return;
  }
  if (prefix.ghosts.empty() && policy != kUsualPolicy) read_ghosts(rates, kUsualPolicy, prefix);
}

StatsPrefix read_prefix(const Json& json) {
  StatsPrefix prefix;
  prefix.published = count(json, "published_blocks");
  prefix.queries = count(json, "queries");
  prefix.query_tokens = count(json, "query_tokens");
  prefix.hit_tokens = count(json, "hit_tokens");
  prefix.evicted = count(object_of(json, "removals"), "evicted");
  prefix.misses = read_reasons(object_of(json, "stops"), {"capped", "less_than_a_block"});
  prefix.removals = read_reasons(object_of(json, "removals"), {});
  if (member(json, "ghosts").is_null()) return prefix;
  const std::string policy(json.contains("policy") ? text(json, "policy") : kUsualPolicy);
  read_ghosts(array_of(object_of(json, "ghosts"), "rates"), policy, prefix);
  return prefix;
}

StatsPages read_pages(const Json& json) {
  StatsPages pages{.total = figure(json, "total"),
                   .free = figure(json, "free"),
                   .of_groups = figure(json, "of_groups"),
                   .evictable = figure(json, "evictable"),
                   .offline = figure(json, "offline"),
                   .page_bytes = {}};
  if (!member(json, "page_bytes").is_null()) pages.page_bytes = count(json, "page_bytes");
  return pages;
}

StatsGroup read_group(const Json& json) {
  StatsGroup group{.group = count(json, "group"),
                   .kind = text(json, "kind"),
                   .pages = figure(json, "pages"),
                   .block_bytes = count(json, "block_bytes"),
                   .stranded = figure(json, "stranded"),
                   .blocks = {}};
  StatsBlocks& blocks = group.blocks;
  blocks.referenced = figure(json, "referenced");
  blocks.fenced = figure(json, "fenced");
  blocks.evictable = figure(json, "evictable");
  blocks.offline = figure(json, "offline");
  blocks.free = figure(json, "free");
  const std::int64_t per_page = count(json, "blocks_per_page");
  const bool fits = !__builtin_mul_overflow(group.pages, per_page, &blocks.total);
  blocks.total = fits ? std::clamp(blocks.total, -kMaxFigure, kMaxFigure) : kMaxFigure;
  return group;
}

void read_groups(const Json& json, StatsPool& pool) {
  // Servers of earlier versions do not tell them.
  if (!json.contains("pages") || json["pages"].is_null()) return;
  pool.pages = read_pages(object_of(json, "pages"));
  for (const Json& group : array_of(json, "groups")) {
    if (pool.groups.size() == kMaxGroups) break;
    pool.groups.push_back(read_group(group));
  }
}

StatsPool read_pool(const Json& json) {
  StatsPool pool;
  pool.name = text(json, "name");
  pool.step = count(json, "step");
  read_pressure(object_of(json, "pressure"), pool);
  pool.blocks = read_blocks(object_of(json, "blocks"));
  read_groups(json, pool);
  const Json& tables = object_of(json, "tables");
  pool.tokens = figure(tables, "tokens");
  pool.sequences = figure(tables, "sequences");
  pool.waiting_requests = count(json, "waiting_requests");
  pool.preemptions = count(json, "preemptions");
  const Json& tickets = object_of(json, "tickets");
  pool.open_tickets = count(tickets, "open");
  pool.oldest_ticket_s = maybe_seconds(tickets, "oldest_age_secs");
  // Servers of earlier versions do not tell it.
  if (json.contains("prefix_cache") && !json["prefix_cache"].is_null()) {
    pool.prefix = read_prefix(object_of(json, "prefix_cache"));
  }
  return pool;
}

void read_health(const Json& json, StatsDocument& stats) {
  stats.status = text(json, "status");
  stats.resident = member_of_type(json, "resident", Json::value_t::boolean).get<bool>();
  if (!member(json, "policy").is_null()) stats.policy = text(json, "policy");
  stats.vram_bytes_used = count(json, "vram_bytes_used");
  stats.checked_s = maybe_seconds(json, "last_check_secs");
  for (const Json& reason : array_of(json, "reasons")) {
    stats.reasons.push_back(
        {text(reason, "code"), text(reason, "text"), seconds(reason, "since_secs")});
  }
  const Json& usage = object_of(json, "usage");
  for (const auto& [purpose, ignored] : usage.items()) {
    stats.usage.push_back({shown(purpose), count(usage, purpose.c_str()), 0});
  }
}

}  // namespace

Json parse_stats(std::string_view text) {
  constexpr int kMaxDepth = 16;
  bool is_too_deep = false;
  const auto within = [&](int depth, Json::parse_event_t, const Json&) {
    is_too_deep = is_too_deep || depth > kMaxDepth;
    return !is_too_deep;
  };
  Json json = Json::parse(text, within, false);
  if (is_too_deep) throw NotStats(fmt::format("it is nested deeper than {}", kMaxDepth));
  if (json.is_discarded()) throw NotStats("it is no JSON");
  return json;
}

StatsDocument read_stats(const Json& json) {
  StatsDocument stats;
  read_health(object_of(json, "health"), stats);
  for (const Json& device : array_of(json, "devices")) stats.devices.push_back(read_device(device));
  for (const Json& pool : array_of(json, "pools")) stats.pools.push_back(read_pool(pool));
  return stats;
}

}  // namespace kvarena::tools
