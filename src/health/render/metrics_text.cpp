#include "health/render/metrics_text.hpp"

#include "health/render/device_metrics.hpp"
#include "health/render/health_json.hpp"
#include "health/render/metric_family.hpp"
#include "health/render/pool_metrics.hpp"

#include "kvarena/base/version.hpp"

#include <prometheus/text_serializer.h>

#include <algorithm>

namespace kvarena {

namespace {

prometheus::MetricFamily single(const MetricName& name, double value) {
  auto family = gauge(name);
  add_sample(family, value);
  return family;
}

prometheus::MetricFamily reasons_family(const HealthReport& report) {
  auto family =
      gauge({"kvarena_unhealthy_reasons", "Reasons why the process is unhealthy, by code."});
  for (int c = 0; c <= static_cast<int>(HealthReasonCode::monitor_stopped); ++c) {
    const auto code = static_cast<HealthReasonCode>(c);
    const auto count =
        std::count_if(report.reasons.begin(), report.reasons.end(),
                      [code](const HealthReason& reason) { return reason.code == code; });
    add_sample(family, static_cast<double>(count), {{"code", name_of(code)}});
  }
  return family;
}

void add_check_families(const HealthReport& report,
                        std::vector<prometheus::MetricFamily>& families) {
  const CheckFigures& checks = report.checks;
  prometheus::MetricFamily durations{"kvarena_check_duration_seconds",
                                     "Time that health checks took.",
                                     prometheus::MetricType::Summary,
                                     {}};
  auto& summary = durations.metric.emplace_back().summary;
  summary.sample_count = checks.completed;
  summary.sample_sum = seconds_between(0, checks.total_duration_ns);
  families.push_back(std::move(durations));
  families.push_back(single({"kvarena_last_check_duration_seconds", "Time the last check took."},
                            seconds_between(0, checks.last_duration_ns)));
  auto failed = counter(
      {"kvarena_failed_checks_total", "Health checks that found something wrong themselves."});
  add_sample(failed, static_cast<double>(checks.failed));
  families.push_back(std::move(failed));
  auto age = gauge({"kvarena_last_check_age_seconds", "Time since the last health check ended."});
  if (checks.completed > 0) {
    add_sample(age, seconds_between(checks.last_ended_ns, report.now_ns));
  }
  families.push_back(std::move(age));
}

}  // namespace

std::vector<prometheus::MetricFamily> metric_families(const HealthReport& report) {
  std::vector<prometheus::MetricFamily> families;
  auto build = gauge({"kvarena_build_info", "1, with the version of the library."});
  add_sample(build, 1, {{"version", KVARENA_VERSION_STRING}});
  families.push_back(std::move(build));
  families.push_back(
      single({"kvarena_healthy", "Whether there is no reason to distrust the process."},
             report.healthy ? 1 : 0));
  families.push_back(single(
      {"kvarena_resident", "Whether all devices hold KV and weights in VRAM, by the last check."},
      report.resident ? 1 : 0));
  families.push_back(reasons_family(report));
  add_check_families(report, families);
  add_device_families(report.devices, families);
  add_pool_families(report.pools, report.now_ns, families);
  std::erase_if(families, [](const auto& family) { return family.metric.empty(); });
  return families;
}

std::string metrics_text(const HealthReport& report) {
  return prometheus::TextSerializer().Serialize(metric_families(report));
}

}  // namespace kvarena
