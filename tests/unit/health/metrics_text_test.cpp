#include "health/render/metrics.hpp"

#include "sample_report.hpp"
#include "unit/health/golden_file.hpp"

#include "kvarena/base/version.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvarena {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

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
  EXPECT_EQ(text, test::golden_file("metrics.txt"));
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
