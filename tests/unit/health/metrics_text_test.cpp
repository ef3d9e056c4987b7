#include "health/render/metrics_text.hpp"

#include "sample_report.hpp"

#include <gtest/gtest.h>

#include <set>

namespace kvarena {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

TEST(MetricsText, Process) {
  HealthReport report = test::sample_report();
  report.reasons = {{HealthReasonCode::ticket_late, "a", 0},
                    {HealthReasonCode::ticket_late, "b", 0}};
  const std::string text = metrics_text(report);
  EXPECT_TRUE(has_line(text, "kvarena_healthy 1")) << text;
  EXPECT_TRUE(has_line(text, "kvarena_resident 1"));
  EXPECT_TRUE(has_line(text, "kvarena_unhealthy_reasons{code=\"ticket_late\"} 2"));
  EXPECT_TRUE(has_line(text, "kvarena_unhealthy_reasons{code=\"device_lost\"} 0"));
  EXPECT_TRUE(has_line(text, "kvarena_check_duration_seconds_count 5"));
  EXPECT_TRUE(has_line(text, "kvarena_check_duration_seconds_sum 2"));
  EXPECT_TRUE(has_line(text, "kvarena_last_check_duration_seconds 0.25"));
  EXPECT_TRUE(has_line(text, "kvarena_last_check_age_seconds 5"));
  EXPECT_TRUE(has_line(text, "kvarena_failed_checks_total 1"));
}

TEST(MetricsText, Pool) {
  const std::string text = metrics_text(test::sample_report());
  const auto expect = [&](const std::string& name, const std::string& value) {
    EXPECT_TRUE(has_line(text, "kvarena_" + name + "{pool=\"default\"} " + value)) << name << text;
  };
  expect("pool_blocks", "100");
  expect("blocks_reserved", "5");
  expect("blocks_watermark", "4");
  expect("blocks_peak", "71");
  expect("sequences", "9");
  expect("tokens", "480");
  expect("waste_tokens", "21");
  expect("open_tickets", "6");
  expect("oldest_ticket_age_seconds", "10");
  expect("snapshot_age_seconds", "3");
  expect("steps_total", "41");
  expect("holders_registered_total", "999");
  expect("block_allocations_total", "1001");
  expect("block_releases_total", "1002");
  expect("evictions_total", "1003");
  expect("exhaustions_total", "1004");
  expect("preemptions_total", "55");
  expect("waiting_requests", "12");
  expect("audit_blocks_total", "640");
  expect("audit_failed", "0");
}

TEST(MetricsText, StatesAreSets) {
  const std::string text = metrics_text(test::sample_report());
  const auto blocks = [&](const std::string& state, int count) {
    return has_line(
        text, "kvarena_blocks{pool=\"default\",state=\"" + state + "\"} " + std::to_string(count));
  };
  EXPECT_TRUE(blocks("free", 50) && blocks("referenced", 30) && blocks("fenced", 10) &&
              blocks("evictable", 8) && blocks("offline", 2))
      << text;
  EXPECT_TRUE(has_line(text, "kvarena_pressure_level{pool=\"default\",level=\"elevated\"} 1"));
  EXPECT_TRUE(has_line(text, "kvarena_pressure_level{pool=\"default\",level=\"normal\"} 0"));
  EXPECT_TRUE(
      has_line(text, "kvarena_pressure_entered_total{pool=\"default\",level=\"elevated\"} 3"));
}

TEST(MetricsText, Device) {
  const std::string text = metrics_text(test::sample_report());
  const std::string device = "{device=\"cuda:0 NVIDIA H200\"";
  EXPECT_TRUE(has_line(text, "kvarena_device_memory_free_bytes" + device + "} 400")) << text;
  EXPECT_TRUE(has_line(text, "kvarena_staging_peak_bytes" + device + "} 12"));
  EXPECT_TRUE(has_line(text, "kvarena_drift_growth_bytes" + device + "} 2"));
  EXPECT_TRUE(has_line(text, "kvarena_own_process_bytes" + device + "} 577"));
  EXPECT_TRUE(has_line(text, "kvarena_context_bytes" + device + "} 4"));
  EXPECT_TRUE(has_line(text, "kvarena_other_processes_bytes" + device + "} 33"));
  EXPECT_TRUE(has_line(text, "kvarena_memory_used_bytes" + device + ",purpose=\"KVCache\"} 200"));
  EXPECT_TRUE(has_line(text, "kvarena_memory_peak_bytes" + device + ",purpose=\"Unknown\"} 7"));
  EXPECT_TRUE(has_line(text, "kvarena_residency_policy" + device + ",policy=\"vram_only\"} 1"));
  EXPECT_TRUE(has_line(text, "kvarena_residency_policy" + device + ",policy=\"allow_host\"} 0"));
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
    EXPECT_EQ(family.type == MetricType::Counter, family.name.ends_with("_total")) << family.name;
    std::set<std::string> series;
    for (const auto& metric : family.metric) {
      std::string labels;
      for (const auto& label : metric.label) labels += label.name + "=" + label.value + ",";
      EXPECT_TRUE(series.insert(labels).second) << family.name << "{" << labels << "} twice";
    }
  }
}

}  // namespace
}  // namespace kvarena
