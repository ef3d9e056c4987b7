// How people see the prefix cache of a pool in /stats.

#include "health/render/json.hpp"
#include "tools/monitor/stats_view.hpp"
#include "unit/health/sample_report.hpp"
#include "unit/tools/command_run.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;

Json cached_stats() { return stats_json(test::report_with_prefix(), test::sample_details()); }

Json& prefix_of(Json& stats) { return stats["pools"][0]["prefix_cache"]; }

std::string text_of(const Json& stats) {
  std::string text;
  for (const std::string& line : frame_of_stats("http://x", read_stats(stats), {}).lines) {
    text += line + "\n";
  }
  return text;
}

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
