#include "health/render/device_metrics.hpp"

#include "health/render/metric_family.hpp"

#include <optional>

namespace kvarena {

namespace {

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

}  // namespace

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

}  // namespace kvarena
