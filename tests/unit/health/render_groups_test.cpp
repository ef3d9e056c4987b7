// The pages and groups of pools in /stats and /metrics.

#include "health/render/json.hpp"
#include "health/render/metrics.hpp"
#include "unit/health/sample_report.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace kvarena {
namespace {

/// Whether the text has this line.
bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(GroupStats, JsonHasEveryFigure) {
  const Json pool = stats_json(test::report_with_groups(), {})["pools"][0];
  EXPECT_EQ(pool["pages"].dump(),
            R"({"total":40,"free":16,"of_groups":23,"offline":1,"evictable":7,"reserved":5,)"
            R"("watermark":4,"peak_used":31,"turned":88,"page_bytes":6144})");
  ASSERT_EQ(pool["groups"].size(), 2U);
  EXPECT_EQ(pool["groups"][0].dump(),
            R"({"group":0,"kind":"full","pages":11,"blocks_per_page":3,"block_bytes":2048,)"
            R"("free":9,"referenced":12,"fenced":4,"evictable":6,"offline":2,"stranded":8})");
  EXPECT_EQ(pool["groups"][1]["kind"], "window");
  const Json without = stats_json(test::sample_report(), {})["pools"][0];
  EXPECT_TRUE(without["pages"].is_null());
  EXPECT_EQ(without["groups"], Json::array());
  HealthReport untold = test::report_with_groups();
  untold.pools[0].snapshot.pages.page_bytes = 0;
  EXPECT_TRUE(stats_json(untold, {})["pools"][0]["pages"]["page_bytes"].is_null());
}

TEST(GroupStats, MetricsHaveEveryFigure) {
  const std::string text = metrics_text(test::report_with_groups());
  const std::string full = "{pool=\"default\",group=\"0\",kind=\"full\"";
  const std::string window = "{pool=\"default\",group=\"1\",kind=\"window\"";
  for (const std::string& line : {
           std::string("kvarena_pages{pool=\"default\",state=\"free\"} 16"),
           std::string("kvarena_pages{pool=\"default\",state=\"of_groups\"} 23"),
           std::string("kvarena_pages{pool=\"default\",state=\"offline\"} 1"),
           std::string("kvarena_pool_pages{pool=\"default\"} 40"),
           std::string("kvarena_page_bytes{pool=\"default\"} 6144"),
           std::string("kvarena_pages_evictable{pool=\"default\"} 7"),
           std::string("kvarena_pages_reserved{pool=\"default\"} 5"),
           std::string("kvarena_pages_watermark{pool=\"default\"} 4"),
           std::string("kvarena_pages_peak{pool=\"default\"} 31"),
           std::string("# TYPE kvarena_pages_turned_total counter"),
           std::string("kvarena_pages_turned_total{pool=\"default\"} 88"),
           "kvarena_group_pages" + full + "} 11",
           "kvarena_group_pages" + window + "} 12",
           "kvarena_group_block_bytes" + window + "} 5120",
           "kvarena_group_blocks_per_page" + full + "} 3",
           "kvarena_group_blocks_stranded" + full + "} 8",
           "kvarena_group_blocks" + full + ",state=\"free\"} 9",
           "kvarena_group_blocks" + full + ",state=\"referenced\"} 12",
           "kvarena_group_blocks" + full + ",state=\"fenced\"} 4",
           "kvarena_group_blocks" + full + ",state=\"evictable\"} 6",
           "kvarena_group_blocks" + full + ",state=\"offline\"} 2",
           "kvarena_group_blocks" + window + ",state=\"referenced\"} 7",
       }) {
    EXPECT_TRUE(has_line(text, line)) << line << "\n" << text;
  }
  const std::string without = metrics_text(test::sample_report());
  EXPECT_EQ(without.find("kvarena_group"), std::string::npos) << "no groups, no samples";
  EXPECT_EQ(without.find("kvarena_page"), std::string::npos);
}

/// A pool with groups beside one without: each family has the samples of one pool.
TEST(GroupStats, PoolsWithAndWithoutGroupsStandSideBySide) {
  HealthReport report = test::report_with_groups();
  report.pools.push_back(test::sample_report().pools[0]);
  report.pools[1].name = "second";
  std::map<std::string, std::size_t> samples;
  for (const auto& family : metric_families(report)) {
    EXPECT_FALSE(samples.contains(family.name)) << family.name;
    samples[family.name] = family.samples.size();
  }
  EXPECT_EQ(samples["kvarena_pool_pages"], 1U);
  EXPECT_EQ(samples["kvarena_group_blocks"], 10U);
  EXPECT_EQ(samples["kvarena_pool_blocks"], 2U);
}

}  // namespace
}  // namespace kvarena
