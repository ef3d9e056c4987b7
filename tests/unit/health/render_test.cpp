// The answers of /health, /stats and /metrics.

#include "health/render/json.hpp"
#include "health/render/metrics.hpp"
#include "support/text_matchers.hpp"
#include "unit/health/sample_report.hpp"

#include "kvarena/base/version.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>

namespace kvarena {
namespace {

using test::kSecond;

/// What the sample report is rendered to, whole: a file beside the tests.
std::string golden_file(const std::string& name) {
  std::ifstream in(KVARENA_GOLDEN_DIR "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(HealthJson, HealthyProcessInFewFields) {
  const Json json = health_json(test::sample_report());
  EXPECT_EQ(to_text(json),
            "{\"status\":\"healthy\",\"resident\":true,\"policy\":\"vram_only\","
            "\"allocations_checked\":7,\"vram_bytes_used\":600,\"last_check_secs\":5.0,"
            "\"usage\":{\"ModelWeights\":300,\"KVCache\":200,\"IntermediateBuffers\":100,"
            "\"Unknown\":0},\"pressure\":\"elevated\",\"reasons\":[]}\n");
}

TEST(HealthJson, ReasonsSayWhatAndSinceWhen) {
  HealthReport report = test::sample_report();
  report.healthy = false;
  report.resident = false;
  report.reasons = {
      {HealthReasonCode::residency_violated, "VRAM residency violated: 0x1", 88 * kSecond},
      {HealthReasonCode::ticket_late, "ticket 77", 99 * kSecond}};
  const Json json = health_json(report);
  EXPECT_EQ(json["status"], "unhealthy");
  EXPECT_EQ(json["resident"], false);
  ASSERT_EQ(json["reasons"].size(), 2u);
  EXPECT_EQ(json["reasons"][0]["code"], "residency_violated");
  EXPECT_EQ(json["reasons"][0]["text"], "VRAM residency violated: 0x1");
  EXPECT_EQ(json["reasons"][0]["since_secs"], 12.0);
  EXPECT_EQ(json["reasons"][1]["code"], "ticket_late");
}

TEST(HealthJson, BeforeACheckAndWithoutDevices) {
  const Json json = health_json(HealthReport{});
  EXPECT_EQ(json["status"], "unhealthy");
  EXPECT_TRUE(json["last_check_secs"].is_null());
  EXPECT_TRUE(json["policy"].is_null());
  EXPECT_EQ(json["vram_bytes_used"], 0);
  EXPECT_EQ(json["pressure"], "normal");
}

TEST(HealthJson, OneDeviceThatAllowsHostMemoryNamesThePolicy) {
  HealthReport report = test::sample_report();
  report.devices.push_back(test::sample_device());
  report.devices[1].policy = ResidencyPolicy::allow_host;
  const Json json = health_json(report);
  EXPECT_EQ(json["policy"], "allow_host");
  EXPECT_EQ(json["allocations_checked"], 14);
  EXPECT_EQ(json["vram_bytes_used"], 1200);
  EXPECT_EQ(json["usage"]["KVCache"], 400);
}

TEST(HealthJson, TimeThatRunsBackIsZero) {
  HealthReport report = test::sample_report();
  report.now_ns = 90 * kSecond;
  EXPECT_EQ(health_json(report)["last_check_secs"], 0.0);
}

TEST(HealthJson, BytesThatAreNoTextDoNotThrow) {
  HealthReport report = test::sample_report();
  report.reasons = {{HealthReasonCode::device_lost, "\xff\xfe broken", 0}};
  EXPECT_HAS(to_text(health_json(report)), "broken");
}

TEST(StatsJson, IsAllThatIsKnown) {
  const Json json = stats_json(test::sample_report(), test::sample_details());
  Json expected = Json::parse(golden_file("stats.json"));
  expected["version"] = json["version"];
  EXPECT_EQ(json.dump(1), expected.dump(1));
  EXPECT_EQ(json["health"], health_json(test::sample_report()));
  const Json& pool = json["pools"][0];
  EXPECT_EQ(pool["blocks"], blocks_json(test::sample_snapshot().blocks));
  const Json& holders = pool["details"]["holders"];
  EXPECT_TRUE(holders[1]["age_secs"].is_null()) << "since when was not told";
  EXPECT_TRUE(holders[1]["overdue_secs"].is_null()) << "it has no deadline";
  EXPECT_EQ(holders[2]["overdue_secs"], 0.0) << "its deadline was not over then";
  EXPECT_EQ(pool["details"]["explanation"]["text"],
            to_string(test::sample_details().pools[0].details.explanation));
}

TEST(StatsJson, WhatIsNotKnownIsNull) {
  HealthReport report = test::sample_report();
  report.devices[0].drift.reset();
  report.devices.push_back(test::sample_device());
  report.devices[1].drift->own_bytes.reset();
  report.devices[1].drift->context_bytes.reset();
  report.pools[0].pressure = PressureLevel::normal;
  report.pools[0].looked_ns.reset();
  report.pools[0].snapshot.oldest_ticket = kNoTicket;
  report.pools[0].snapshot.audit.failure = {
      StatusCode::invariant_violated, Resource::block, Option::none, 2, 9, 0, 0};
  HealthDetails details = test::sample_details();
  details.pools[0].name = "another";
  details.devices.clear();
  const Json json = stats_json(report, details);
  for (const char* place :
       {"/devices/0/drift", "/devices/0/largest_allocations", "/devices/1/drift/own_bytes",
        "/devices/1/drift/context_bytes", "/pools/0/pressure/cause", "/pools/0/pressure/age_secs",
        "/pools/0/details", "/pools/0/tickets/oldest", "/pools/0/tickets/oldest_age_secs"}) {
    EXPECT_TRUE(json.at(Json::json_pointer(place)).is_null()) << place;
  }
  EXPECT_EQ(json["devices"][1]["drift"]["other_bytes"], 33);
  EXPECT_EQ(json["pools"][0]["audit"]["failure"], describe(report.pools[0].snapshot.audit.failure));
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(MetricsText, IsAllThatIsKnown) {
  HealthReport report = test::sample_report();
  report.reasons = {{HealthReasonCode::ticket_late, "a", 0},
                    {HealthReasonCode::ticket_late, "b", 0}};
  std::string text = metrics_text(report);
  const std::string version = "version=\"" KVARENA_VERSION_STRING "\"";
  text.replace(text.find(version), version.size(), "version=\"0\"");
  EXPECT_EQ(text, golden_file("metrics.txt"));
}

TEST(MetricsText, UnknownFiguresHaveNoSeries) {
  HealthReport report = test::sample_report();
  report.devices[0].drift.reset();
  report.checks = {};
  const std::string text = metrics_text(report);
  EXPECT_EQ(text.find("kvarena_drift"), std::string::npos);
  EXPECT_EQ(text.find("kvarena_context"), std::string::npos);
  EXPECT_EQ(text.find("kvarena_last_check_age_seconds"), std::string::npos);
}

TEST(MetricsText, EqualNamesStayApart) {
  HealthReport report = test::sample_report();
  report.pools.push_back(report.pools[0]);
  report.pools.push_back(report.pools[0]);
  report.pools[1].name = "default#2";
  const std::string text = metrics_text(report);
  EXPECT_TRUE(has_line(text, "kvarena_sequences{pool=\"default\"} 9")) << text;
  EXPECT_TRUE(has_line(text, "kvarena_sequences{pool=\"default#2\"} 9"));
  EXPECT_TRUE(has_line(text, "kvarena_sequences{pool=\"default#3\"} 9"));
}

TEST(MetricsText, LabelsAreEscaped) {
  HealthReport report = test::sample_report();
  report.pools[0].name = "a\"b\\c\nd";
  EXPECT_TRUE(has_line(metrics_text(report), "kvarena_sequences{pool=\"a\\\"b\\\\c\\nd\"} 9"));
}

/// Prometheus's conventions, as far as promtool does not look at them either.
TEST(MetricsText, NamesFollowTheConventions) {
  std::set<std::string> names;
  for (const MetricFamily& family : metric_families(test::sample_report())) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name << " twice";
    EXPECT_TRUE(family.name.starts_with("kvarena_")) << family.name;
    EXPECT_TRUE(family.help.ends_with(".")) << family.name;
    EXPECT_EQ(family.type == MetricType::counter, family.name.ends_with("_total")) << family.name;
    std::set<std::string> series;
    for (const auto& metric : family.samples) {
      std::string labels;
      for (const auto& label : metric.labels) labels += label.name + "=" + label.value + ",";
      EXPECT_TRUE(series.insert(labels).second) << family.name << "{" << labels << "} twice";
    }
  }
}

// ---- the pages and groups of pools --------------------------------------------------------------

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

// ---- prefix caches ------------------------------------------------------------------------------

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
