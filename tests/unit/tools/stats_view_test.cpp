// The answer of /stats: what is refused, what may not reach a terminal, and how people see it.

#include "tools/monitor/stats_view.hpp"
#include "health/render/json.hpp"
#include "unit/health/sample_report.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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

MonitorFrame frame_of(const Json& stats) {
  return frame_of_stats("http://x", read_stats(stats), {});
}

MonitorFrame frame_of(const Json& stats, const Json& before, double elapsed_s) {
  const StatsDocument earlier = read_stats(before);
  return frame_of_stats("http://x", read_stats(stats), {&earlier, elapsed_s});
}

bool has_line(const MonitorFrame& frame, const std::string& part) {
  for (const std::string& line : frame.lines) {
    if (contains(line, part)) return true;
  }
  return false;
}

std::string text_of(const MonitorFrame& frame) {
  std::string text;
  for (const std::string& line : frame.lines) text += line + "\n";
  return text;
}

std::string text_of(const Json& stats) { return text_of(frame_of(stats)); }

TEST(StatsView, ShowsHealthUsageBlocksAndPressure) {
  const MonitorFrame frame = frame_of(sample_stats());
  EXPECT_TRUE(frame.healthy);
  EXPECT_EQ(frame.lines.front(), "http://x  healthy  resident yes (vram_only)  checked 5.0 s ago");
  EXPECT_TRUE(has_line(frame, "pool default  step 41  pressure elevated")) << text_of(frame);
  EXPECT_TRUE(has_line(frame,
                       "100 blocks: 30 referenced #, 10 fenced ~, 8 evictable +, "
                       "2 offline x, 50 free ."));
  EXPECT_TRUE(has_line(frame,
                       "480 tokens in 9 sequences, 12 requests wait; 6 open tickets, "
                       "the oldest 10.0 s"));
  EXPECT_TRUE(has_line(frame, "KVCache")) << text_of(frame);
  EXPECT_FALSE(has_line(frame, "a second:")) << "no rate without an earlier look";
}

TEST(StatsView, StatesThatDoNotAddUpAreShownAsTheyAre) {
  Json stats = sample_stats();
  EXPECT_FALSE(has_line(frame_of(stats), "add up"));
  stats["pools"][0]["blocks"]["free"] = 2000;
  EXPECT_TRUE(has_line(frame_of(stats), "  states add up to 2,050 of 100"));
  stats["pools"][0]["blocks"]["free"] = -60;
  const MonitorFrame frame = frame_of(stats);
  EXPECT_TRUE(has_line(frame, "offline x, -60 free .")) << text_of(frame);
  EXPECT_TRUE(has_line(frame, "  states add up to -10 of 100")) << text_of(frame);
}

TEST(StatsView, ALineHasTheSameInPairs) {
  const std::string health =
      "healthy reasons=- resident=yes checked=5.0s vram=600B ModelWeights=300B KVCache=200B "
      "IntermediateBuffers=100B Unknown=0B device=\"cuda:0 NVIDIA H200\" free=400B total=1000B ";
  const std::string pool =
      "pool=default step=41 pressure=elevated blocks=50/100 tokens=480 sequences=9 waiting=12 "
      "tickets=6 ";
  Json stats = sample_stats();
  stats["pools"][0]["pressure"] = {{"level", "elevated"}};  // as earlier versions have it
  EXPECT_EQ(frame_of(stats).line, health + pool +
                                      "steps/s=- allocations/s=- evictions/s=- exhaustions/s=- "
                                      "preemptions/s=-");
  Json now = stats;
  now["pools"][0]["blocks"]["evictions"] = 1013;
  now["pools"][0]["preemptions"] = 56;
  EXPECT_EQ(frame_of(now, stats, 4.0).line,
            health + pool +
                "steps/s=0.0 allocations/s=0.0 evictions/s=2.5 exhaustions/s=0.0 "
                "preemptions/s=0.2");
}

TEST(StatsView, RatesAreDifferencesOfCounters) {
  const Json before = sample_stats();
  Json now = before;
  now["pools"][0]["step"] = 141;
  now["pools"][0]["preemptions"] = 56;
  now["pools"][0]["blocks"]["allocations"] = 1501;
  EXPECT_TRUE(has_line(frame_of(now, before, 4.0),
                       "a second: 25.0 steps, 125.0 blocks handed out, 0.0 evictions, "
                       "0.0 exhaustions, 0.2 preemptions"))
      << text_of(frame_of(now, before, 4.0));
  EXPECT_TRUE(has_line(frame_of(before, now, 4.0), "a second: - steps"))
      << "a server that started anew";
  now["pools"][0]["name"] = "another";
  EXPECT_FALSE(has_line(frame_of(now, before, 4.0), "a second:")) << "a pool that came";
}

TEST(StatsView, ReasonsAreNamed) {
  HealthReport report = test::sample_report();
  report.healthy = false;
  report.reasons = {{HealthReasonCode::ticket_late, "ticket 77 of default", 90 * test::kSecond},
                    {HealthReasonCode::check_stuck, "for 12 s", 99 * test::kSecond}};
  const MonitorFrame frame = frame_of(stats_json(report, test::sample_details()));
  EXPECT_FALSE(frame.healthy);
  EXPECT_TRUE(has_line(frame, "ticket_late for 10.0 s: ticket 77 of default")) << text_of(frame);
  EXPECT_TRUE(frame.line.starts_with("unhealthy reasons=ticket_late,check_stuck resident=yes"))
      << frame.line;
}

TEST(StatsView, NotCheckedYet) {
  Json stats = sample_stats();
  stats["health"]["last_check_secs"] = nullptr;
  EXPECT_TRUE(frame_of(stats).lines.front().ends_with("not checked yet"));
  EXPECT_TRUE(contains(frame_of(stats).line, " checked=- "));
}

TEST(StatsView, WithoutADeviceNobodyIsResident) {
  HealthReport report = test::sample_report();
  report.devices.clear();
  report.resident = false;
  const MonitorFrame frame = frame_of(stats_json(report, {}));
  EXPECT_EQ(frame.lines.front(),
            "http://x  healthy  resident - (no device is watched)  checked 5.0 s ago");
  EXPECT_TRUE(contains(frame.line, " resident=- "));
}

TEST(StatsView, PressureSaysWhyAndWhenWhereTheServerDoes) {
  Json stats = sample_stats();
  Json& pressure = stats["pools"][0]["pressure"];
  pressure = {{"level", "critical"}, {"cause", "blocks"}, {"age_secs", 0.8}};
  EXPECT_TRUE(has_line(frame_of(stats), "pressure critical (blocks, 0.8 s ago)"))
      << text_of(frame_of(stats));
  EXPECT_TRUE(contains(frame_of(stats).line, " pressure=critical cause=blocks "));
  pressure = {{"level", "critical"}, {"cause", "vram"}, {"age_secs", nullptr}};
  EXPECT_TRUE(has_line(frame_of(stats), "pressure critical (vram)")) << text_of(frame_of(stats));
  pressure = {{"level", "normal"}, {"cause", nullptr}, {"age_secs", 0.25}};
  EXPECT_TRUE(frame_of(stats).lines[8].ends_with("pressure normal")) << text_of(frame_of(stats));
}

TEST(StatsView, BarHasOneCharacterForEachShare) {
  const StatsBlocks blocks = read_stats(sample_stats()).pools.at(0).blocks;
  EXPECT_EQ(block_bar(blocks, 10), "###~+.....");
  EXPECT_EQ(block_bar(blocks, 100), std::string(30, '#') + std::string(10, '~') +
                                        std::string(8, '+') + "xx" + std::string(50, '.'));
}

TEST(StatsView, BarIsAsWideAsItIsToldWhateverTheCounts) {
  StatsBlocks blocks;
  EXPECT_EQ(block_bar(blocks, 10), std::string(10, ' ')) << "an empty pool";
  blocks.total = 5;
  blocks.free = INT64_MAX;
  blocks.referenced = INT64_MAX;
  EXPECT_EQ(block_bar(blocks, 10), std::string(10, '#'));
  blocks.referenced = -7;
  blocks.free = 2;
  EXPECT_EQ(block_bar(blocks, 10).size(), 10U);
}

// ---- pages and groups ---------------------------------------------------------------------------

Json grouped_stats() { return stats_json(test::report_with_groups(), test::sample_details()); }

TEST(StatsOfGroups, HaveARowForPagesAndOneForEachGroup) {
  const std::string text = text_of(grouped_stats());
  EXPECT_TRUE(
      contains(text,
               "  [###################+++++++++x...................]\n"
               "  40 pages of 6.00 KiB: 16 in use #, 7 evictable +, 1 offline x, 16 free .\n"
               "  group 0 (full): 11 pages, 33 blocks of 2.00 KiB: 12 referenced, 4 fenced, "
               "6 evictable, 2 offline, 9 free (8 stranded)\n"
               "  group 1 (window): 12 pages, 12 blocks of 5.00 KiB: 7 referenced, 3 "
               "fenced, 2 evictable, 0 offline, 0 free (0 stranded)\n"
               "  480 tokens"))
      << text;
  EXPECT_FALSE(contains(text, "100 blocks:")) << "blocks of several sizes are not added up";
  EXPECT_FALSE(contains(text, "add up"));
}

TEST(StatsOfGroups, ALineHasPagesInUse) {
  EXPECT_TRUE(contains(frame_of(grouped_stats()).line, " blocks=50/100 pages=24/40 tokens=480 "));
}

TEST(StatsOfGroups, DamagedAccountsAreShownAsTheyAre) {
  Json stats = grouped_stats();
  stats["pools"][0]["pages"]["free"] = 99;
  stats["pools"][0]["groups"][1]["referenced"] = -5;
  const std::string text = text_of(stats);
  EXPECT_TRUE(contains(text, "  states add up to 123 of 40\n")) << text;
  EXPECT_TRUE(contains(text, "  states add up to 0 of 12\n")) << text;
  stats["pools"][0]["groups"][0]["pages"] = INT64_MAX;
  stats["pools"][0]["groups"][0]["blocks_per_page"] = INT64_MAX;
  EXPECT_EQ(read_stats(stats).pools[0].groups[0].blocks.total, std::int64_t{1} << 60) << "cut";
}

TEST(StatsOfGroups, ServersThatDoNotTellThemAreRead) {
  Json stats = grouped_stats();
  stats["pools"][0].erase("pages");
  stats["pools"][0].erase("groups");
  EXPECT_FALSE(read_stats(stats).pools[0].pages.has_value());
  EXPECT_TRUE(contains(text_of(stats), "100 blocks:"));
}

TEST(StatsOfGroups, AreAtMostAsManyAsAPoolHas) {
  Json stats = grouped_stats();
  for (int i = 0; i < 100; ++i) {
    stats["pools"][0]["groups"].push_back(stats["pools"][0]["groups"][0]);
  }
  EXPECT_EQ(read_stats(stats).pools[0].groups.size(), 32U);
  stats["pools"][0]["groups"][0]["kind"] = 7;
  EXPECT_THROW(static_cast<void>(read_stats(stats)), NotStats);
  stats["pools"][0]["groups"] = nullptr;
  EXPECT_THROW(static_cast<void>(read_stats(stats)), NotStats);
}

// ---- prefix caches ------------------------------------------------------------------------------

Json cached_stats() { return stats_json(test::report_with_prefix(), test::sample_details()); }

Json& prefix_of(Json& stats) { return stats["pools"][0]["prefix_cache"]; }

TEST(StatsOfPrefixes, SayWhyPromptsWereNotFoundAndBlocksWent) {
  const std::string text = text_of(cached_stats());
  EXPECT_TRUE(contains(text,
                       "  prefix cache: 28 blocks, 35.6 % of 900 prompt tokens found, 0 blocks "
                       "evicted\n"
                       "  not found, most often: 1,500 never_seen, 4 evicted\n"
                       "  blocks removed, most often: 3 over_cap\n"))
      << text;
  EXPECT_FALSE(contains(text, "capped")) << "nothing was missing";
}

TEST(StatsOfPrefixes, TheGhostsAreOfThePoolsPolicy) {
  Json stats = cached_stats();
  EXPECT_TRUE(
      contains(text_of(stats),
               "  blocks it would find by lfu, in pools: 25.0 % with 0.5, 0.0 % with 1, 0.0 % "
               "with 2, 0.0 % with 4\n"))
      << text_of(stats);
  prefix_of(stats)["ghosts"]["rates"][1]["block_hit_rate"] = 0.5;
  const std::string usual =
      "  blocks it would find by tail-first, in pools: 0.0 % with 0.5, 50.0 % with 1,";
  prefix_of(stats)["policy"] = "priority";
  EXPECT_TRUE(contains(text_of(stats), usual)) << "no ghost plays priorities";
  prefix_of(stats).erase("policy");
  EXPECT_TRUE(contains(text_of(stats), usual)) << "a server of an earlier version";
}

TEST(StatsOfPrefixes, AtMostThreeReasonsAreShown) {
  Json stats = cached_stats();
  Json& stops = prefix_of(stats)["stops"];
  stops["other_salt"] = 9;
  stops["other_group"] = 2'000;
  EXPECT_TRUE(contains(text_of(stats),
                       "  not found, most often: 2,000 other_group, 1,500 never_seen, 9 "
                       "other_salt\n"))
      << text_of(stats);
  stops = Json::object();
  prefix_of(stats)["removals"] = {{"evicted", 0}};
  EXPECT_FALSE(contains(text_of(stats), "most often"));
}

}  // namespace
}  // namespace kvarena::tools
