#include "health/render/metrics.hpp"

#include "health/render/json.hpp"
#include "health/render/metric_family.hpp"

#include "kvarena/base/version.hpp"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <optional>

namespace kvarena {

prometheus::MetricFamily gauge(const MetricName& name) {
  return {name.name, name.help, prometheus::MetricType::Gauge, {}};
}

prometheus::MetricFamily counter(const MetricName& name) {
  return {name.name, name.help, prometheus::MetricType::Counter, {}};
}

void add_sample(prometheus::MetricFamily& family, double value,
                std::initializer_list<MetricLabel> labels) {
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  for (const MetricLabel& label : labels) {
    metric.label.push_back({std::string(label.name), std::string(label.value)});
  }
  if (family.type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
}

namespace {

// ---- devices ------------------------------------------------------------------------------------

/// One figure of a device; nothing where it is unknown.
struct DeviceFigure {
  MetricName name;
  bool is_counter;
  std::optional<double> (*value)(const DeviceHealth& device);
};

std::optional<double> number(std::uint64_t figure) { return static_cast<double>(figure); }

/// What NVML may tell.
std::optional<double> told(const DeviceHealth& device,
                           std::optional<std::uint64_t> MemoryDrift::*bytes) {
  const auto figure = device.drift ? (*device.drift).*bytes : std::nullopt;
  return figure ? number(*figure) : std::nullopt;
}

constexpr DeviceFigure kFigures[] = {
    {{"kvarena_device_resident", "Whether all memory of the device is VRAM, by the last check."},
     false,
     [](const DeviceHealth& d) { return number(d.resident ? 1 : 0); }},
    {{"kvarena_device_allocations_checked", "Allocations whose residency the last check verified."},
     false,
     [](const DeviceHealth& d) { return number(d.allocations_checked); }},
    {{"kvarena_device_memory_bytes", "Memory of the device, as the driver says."},
     false,
     [](const DeviceHealth& d) { return number(d.memory.total_bytes); }},
    {{"kvarena_device_memory_free_bytes", "Free memory of the device, as the driver says."},
     false,
     [](const DeviceHealth& d) { return number(d.memory.free_bytes); }},
    {{"kvarena_staging_bytes", "Pinned host memory for transfers."},
     false,
     [](const DeviceHealth& d) { return number(d.usage.staging.bytes); }},
    {{"kvarena_staging_peak_bytes", "The most pinned host memory at any time."},
     false,
     [](const DeviceHealth& d) { return number(d.usage.staging.peak_bytes); }},
    {{"kvarena_memory_allocations_total", "Allocations recorded since the start."},
     true,
     [](const DeviceHealth& d) { return number(d.usage.allocations_ever); }},
    {{"kvarena_memory_frees_total", "Allocations erased since the start."},
     true,
     [](const DeviceHealth& d) { return number(d.usage.frees_ever); }},
    {{"kvarena_drift_bytes", "Driver-reported used memory that the tracker has not recorded."},
     false,
     [](const DeviceHealth& d) -> std::optional<double> {
       if (!d.drift) return std::nullopt;
       return static_cast<double>(d.drift->drift_bytes);
     }},
    {{"kvarena_drift_growth_bytes", "Growth of the drift since the device was opened."},
     false,
     [](const DeviceHealth& d) -> std::optional<double> {
       if (!d.drift) return std::nullopt;
       return static_cast<double>(d.drift->growth_bytes);
     }},
    {{"kvarena_own_process_bytes", "Memory of this process on the device, by NVML."},
     false,
     [](const DeviceHealth& d) { return told(d, &MemoryDrift::own_bytes); }},
    {{"kvarena_context_bytes",
      "Of it, what is not tracked: the CUDA context and what else is not."},
     false,
     [](const DeviceHealth& d) { return told(d, &MemoryDrift::context_bytes); }},
    {{"kvarena_other_processes_bytes", "Memory of other processes on the device, by NVML."},
     false,
     [](const DeviceHealth& d) { return told(d, &MemoryDrift::other_bytes); }},
};

/// One figure of a purpose.
struct PurposeFigure {
  MetricName name;
  std::uint64_t MemoryUsage::*value;
};

constexpr PurposeFigure kPurposeFigures[] = {
    {{"kvarena_memory_used_bytes", "Tracked device memory by purpose."}, &MemoryUsage::bytes},
    {{"kvarena_memory_peak_bytes", "The most tracked device memory at any time, by purpose."},
     &MemoryUsage::peak_bytes},
    {{"kvarena_memory_live_allocations", "Tracked allocations of device memory by purpose."},
     &MemoryUsage::count},
};

void add_device_families(const std::vector<DeviceHealth>& devices,
                         std::vector<prometheus::MetricFamily>& families) {
  const std::vector<std::string> names = unique_names(devices);
  for (const DeviceFigure& figure : kFigures) {
    auto& family =
        families.emplace_back(figure.is_counter ? counter(figure.name) : gauge(figure.name));
    for (std::size_t d = 0; d < devices.size(); ++d) {
      if (const auto value = figure.value(devices[d])) {
        add_sample(family, *value, {{"device", names[d]}});
      }
    }
  }
  for (const PurposeFigure& figure : kPurposeFigures) {
    auto& family = families.emplace_back(gauge(figure.name));
    for (std::size_t d = 0; d < devices.size(); ++d) {
      for (std::size_t p = 0; p < kNumMemoryPurposes; ++p) {
        add_sample(family, static_cast<double>(devices[d].usage.by_purpose[p].*figure.value),
                   {{"device", names[d]}, {"purpose", name_of(static_cast<MemoryPurpose>(p))}});
      }
    }
  }
  auto& policies = families.emplace_back(
      gauge({"kvarena_residency_policy", "1 for the policy that holds, 0 for the other."}));
  for (std::size_t d = 0; d < devices.size(); ++d) {
    for (const auto policy : {ResidencyPolicy::vram_only, ResidencyPolicy::allow_host}) {
      add_sample(policies, devices[d].policy == policy ? 1 : 0,
                 {{"device", names[d]}, {"policy", name_of(policy)}});
    }
  }
}

// ---- the process --------------------------------------------------------------------------------

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
