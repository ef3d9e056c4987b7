// The answer of /stats, taken apart: what is refused, and what may not reach a terminal.

#include "tools/monitor/stats_document.hpp"

#include "unit/health/sample_report.hpp"
#include "unit/tools/command_run.hpp"

#include "health/render/json.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;

Json sample_stats() { return stats_json(test::sample_report(), test::sample_details()); }

/// Why it is refused; empty: it is not.
std::string refusal(const Json& json) {
  try {
    static_cast<void>(read_stats(json));
  } catch (const NotStats& why) {
    return why.what();
  }
  return "";
}

std::string refusal_at(const char* pointer, const Json& value) {
  Json stats = sample_stats();
  stats.at(Json::json_pointer(pointer)) = value;
  return refusal(stats);
}

TEST(StatsDocument, HasWhatTheServerTells) {
  const StatsDocument stats = read_stats(sample_stats());
  EXPECT_EQ(stats.status, "healthy");
  EXPECT_TRUE(stats.resident);
  EXPECT_EQ(stats.policy, "vram_only");
  EXPECT_EQ(stats.vram_bytes_used, 600);
  EXPECT_EQ(stats.checked_s, 5.0);
  ASSERT_EQ(stats.devices.size(), 1U);
  EXPECT_EQ(stats.devices[0].usage.size(), kNumMemoryPurposes + 1);
  EXPECT_EQ(stats.devices[0].usage.back().peak_bytes, 12);
  EXPECT_EQ(stats.devices[0].drift.value().growth_bytes, 2);
  ASSERT_EQ(stats.pools.size(), 1U);
  EXPECT_EQ(stats.pools[0].blocks.evictable, 8);
  EXPECT_EQ(stats.pools[0].blocks.exhaustions, 1004);
  EXPECT_EQ(stats.pools[0].oldest_ticket_s, 10.0);
}

TEST(StatsDocument, EveryMemberThatIsShownIsNeeded) {
  const std::vector<const char*> objects{"/health",           "/health/reasons/0",
                                         "/devices/0/memory", "/devices/0/usage/staging",
                                         "/devices/0/drift",  "/pools/0/tickets"};
  Json whole = sample_stats();
  whole["health"]["reasons"] = {{{"code", "c"}, {"text", "t"}, {"since_secs", 1.0}}};
  ASSERT_EQ(refusal(whole), "");
  int refused = 0;
  for (const char* path : objects) {
    for (const auto& [key, ignored] : whole.at(Json::json_pointer(path)).items()) {
      Json less = whole;
      less.at(Json::json_pointer(path)).erase(key);
      const std::string why = refusal(less);
      if (why.empty()) continue;
      EXPECT_EQ(why, "it has no \"" + key + "\"");
      ++refused;
    }
  }
  // health 7 of 8, reason 3, memory 2, staging 2 of 3, drift 3 of 7, tickets 2 of 3.
  EXPECT_EQ(refused, 19);
}

TEST(StatsDocument, RefusesOtherTypesAndNumbersThatCannotBe) {
  EXPECT_EQ(refusal(Json::array()), "it has no \"health\"");
  EXPECT_EQ(refusal_at("/health", 1), "\"health\" is no object");
  EXPECT_EQ(refusal_at("/pools", nullptr), "\"pools\" is no array");
  EXPECT_EQ(refusal_at("/pools/0", 7), "it has no \"name\"");
  EXPECT_EQ(refusal_at("/health/status", 200), "\"status\" is no string");
  EXPECT_EQ(refusal_at("/health/resident", "yes"), "\"resident\" is no boolean");
  EXPECT_EQ(refusal_at("/pools/0/step", -1), "\"step\" is -1, below 0");
  for (const Json& wrong : {Json(1.5), Json(1e300), Json("1"), Json(nullptr), Json(UINT64_MAX)}) {
    EXPECT_EQ(refusal_at("/pools/0/step", wrong), "\"step\" is not a whole number of 63 bits");
  }
  for (const Json& wrong : {Json(-1), Json(1e300), Json("1")}) {
    EXPECT_EQ(refusal_at("/health/last_check_secs", wrong),
              "\"last_check_secs\" is no number of seconds");
  }
  EXPECT_EQ(refusal_at("/devices/0/drift/growth_bytes", -5), "") << "memory was given back";
}

TEST(StatsDocument, DamagedAccountsAreRead) {
  Json stats = sample_stats();
  Json& blocks = stats["pools"][0]["blocks"];
  blocks["free"] = -3;
  blocks["offline"] = INT64_MIN;
  blocks["allocations"] = UINT64_MAX;
  stats["pools"][0]["tables"]["tokens"] = -7;
  const StatsPool pool = read_stats(stats).pools.at(0);
  EXPECT_EQ(pool.blocks.free, -3);
  EXPECT_EQ(pool.blocks.offline, -(std::int64_t{1} << 60)) << "cut, so that sums hold it";
  EXPECT_EQ(pool.blocks.allocations, std::int64_t{1} << 60);
  EXPECT_EQ(pool.tokens, -7);
  EXPECT_EQ(refusal_at("/pools/0/blocks/free", 1.5), "\"free\" is not a whole number of 63 bits");
}

TEST(StatsDocument, TextHasNoControlCharacters) {
  const std::string hostile =
      "x\x1b[2J\r\n\x07\x7f\xc2\x9b"
      "31m";
  const std::string shown = "x?[2J?????31m";
  Json json = sample_stats();
  json["health"]["status"] = hostile;
  json["health"]["policy"] = hostile;
  json["health"]["usage"][hostile] = 1;
  json["health"]["reasons"] = {{{"code", hostile}, {"text", hostile}, {"since_secs", 1.0}}};
  json["devices"][0]["name"] = hostile;
  json["devices"][0]["usage"]["by_purpose"][hostile] = {{"bytes", 1}, {"peak_bytes", 2}};
  json["pools"][0]["name"] = hostile;
  json["pools"][0]["pressure"] = {{"level", hostile}, {"cause", hostile}};
  const StatsDocument stats = read_stats(json);
  EXPECT_EQ(stats.status, shown);
  EXPECT_EQ(stats.policy, shown);
  EXPECT_EQ(stats.usage.back().purpose, shown);
  EXPECT_EQ(stats.reasons.at(0).code, shown);
  EXPECT_EQ(stats.reasons.at(0).text, shown);
  EXPECT_EQ(stats.devices.at(0).name, shown);
  EXPECT_EQ(stats.devices.at(0).usage.at(kNumMemoryPurposes).purpose, shown);
  EXPECT_EQ(stats.pools.at(0).name, shown);
  EXPECT_EQ(stats.pools.at(0).pressure, shown);
  EXPECT_EQ(stats.pools.at(0).pressure_cause, shown);
}

TEST(StatsDocument, TextIsCut) {
  Json json = sample_stats();
  json["pools"][0]["name"] = std::string(1 << 20, 'x');
  EXPECT_EQ(read_stats(json).pools.at(0).name, std::string(1000, 'x'));
}

}  // namespace
}  // namespace kvarena::tools
