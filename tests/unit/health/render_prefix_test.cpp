// The figures of prefix caches in /stats and /metrics.

#include "health/render/json.hpp"
#include "health/render/metrics.hpp"
#include "unit/health/sample_report.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvarena {
namespace {

/// Whether the text has this line.
bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(PrefixStats, JsonHasEveryFigure) {
  const HealthReport report = test::report_with_prefix();
  const Json json = prefix_json(report.pools[0].snapshot);
  EXPECT_EQ(json["published_blocks"], 28);
  EXPECT_EQ(json["query_tokens"], 900);
  EXPECT_EQ(json["hit_tokens"], 320);
  EXPECT_EQ(json["shared"], 5);
  EXPECT_EQ(json["broken_chains"], 2);
  EXPECT_EQ(json["policy"], "lfu");
  EXPECT_EQ(json["stops"]["evicted"], 4);
  EXPECT_EQ(json["stops"].size(), kNumPrefixStops);
  EXPECT_EQ(json["removals"]["over_cap"], 3);
  EXPECT_EQ(json["reuse_gap"]["counts"][0], 2);
  EXPECT_EQ(json["reuse_gap"]["counts"][3], 5) << "50 is above 16 and at most 64";
  EXPECT_EQ(json["reuse_gap"]["sum"], 2 + 250 + (std::int64_t{1} << 40));
  EXPECT_EQ(json["ghosts"]["sampled_share"], 0.125);
  EXPECT_EQ(json["ghosts"]["rates"].size(), 16U);
  EXPECT_EQ(json["ghosts"]["rates"][12]["policy"], "lfu");
  EXPECT_EQ(json["ghosts"]["rates"][12]["pools"], 0.5);
  EXPECT_EQ(json["ghosts"]["rates"][12]["block_hit_rate"], 0.25);
  EXPECT_TRUE(prefix_json(test::sample_report().pools[0].snapshot).is_null());
  PoolSnapshot without = report.pools[0].snapshot;
  without.prefix_use.ghost_sampled_ppm = 0;
  EXPECT_TRUE(prefix_json(without)["ghosts"].is_null());
  EXPECT_EQ(stats_json(report, {})["pools"][0]["prefix_cache"], json);
}

TEST(PrefixStats, MetricsHaveEveryFigure) {
  const std::string text = metrics_text(test::report_with_prefix());
  for (const char* line : {
           "# TYPE kvarena_prefix_hit_tokens_total counter",
           "kvarena_prefix_hit_tokens_total{pool=\"default\"} 320",
           "kvarena_prefix_published_blocks{pool=\"default\"} 28",
           "kvarena_prefix_duplicate_blocks_total{pool=\"default\"} 6",
           "kvarena_prefix_shared_blocks_total{pool=\"default\"} 5",
           "kvarena_prefix_broken_chains_total{pool=\"default\"} 2",
           "kvarena_prefix_stops_total{pool=\"default\",reason=\"evicted\"} 4",
           "kvarena_prefix_removals_total{pool=\"default\",cause=\"over_cap\"} 3",
           "# TYPE kvarena_prefix_reuse_gap_registrations histogram",
           "kvarena_prefix_reuse_gap_registrations_bucket{pool=\"default\",le=\"1\"} 2",
           "kvarena_prefix_reuse_gap_registrations_bucket{pool=\"default\",le=\"16\"} 2",
           "kvarena_prefix_reuse_gap_registrations_bucket{pool=\"default\",le=\"64\"} 7",
           "kvarena_prefix_reuse_gap_registrations_bucket{pool=\"default\",le=\"+Inf\"} 8",
           "kvarena_prefix_reuse_gap_registrations_count{pool=\"default\"} 8",
           "kvarena_prefix_ghost_hit_ratio{pool=\"default\",policy=\"lfu\",pools=\"0.5\"} 0.25",
           "kvarena_prefix_ghost_sampled_ratio{pool=\"default\"} 0.125",
       }) {
    EXPECT_TRUE(has_line(text, line)) << line << "\n" << text;
  }
  EXPECT_EQ(metrics_text(test::sample_report()).find("kvarena_prefix"), std::string::npos)
      << "a pool without one has no samples";
  std::set<std::string> names;
  for (const auto& family : metric_families(test::report_with_prefix())) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    EXPECT_FALSE(family.samples.empty() && family.name.starts_with("kvarena_prefix"));
  }
}

}  // namespace
}  // namespace kvarena
