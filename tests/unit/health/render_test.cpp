// The answers of /health, /stats and /metrics.

#include "health/render/json.hpp"
#include "health/render/metrics.hpp"
#include "support/text_matchers.hpp"
#include "unit/health/sample_report.hpp"

#include "kvarena/base/version.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
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

}  // namespace
}  // namespace kvarena
