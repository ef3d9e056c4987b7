#include "health/render/device_json.hpp"

#include <spdlog/fmt/fmt.h>

namespace kvarena {

namespace {

Json usage_json(const MemoryUsage& usage) {
  return {{"bytes", usage.bytes}, {"peak_bytes", usage.peak_bytes}, {"allocations", usage.count}};
}

Json breakdown_json(const MemoryBreakdown& breakdown) {
  Json by_purpose = Json::object();
  for (std::size_t p = 0; p < kNumMemoryPurposes; ++p) {
    by_purpose[std::string(name_of(static_cast<MemoryPurpose>(p)))] =
        usage_json(breakdown.by_purpose[p]);
  }
  return {{"total", usage_json(breakdown.total)},
          {"by_purpose", std::move(by_purpose)},
          {"staging", usage_json(breakdown.staging)},
          {"allocations_ever", breakdown.allocations_ever},
          {"frees_ever", breakdown.frees_ever}};
}

Json optional_json(const std::optional<std::uint64_t>& bytes) {
  return bytes ? Json(*bytes) : Json(nullptr);
}

Json drift_json(const std::optional<MemoryDrift>& drift) {
  if (!drift) return nullptr;
  return {{"driver_used_bytes", drift->driver_used_bytes},
          {"tracked_bytes", drift->tracked_bytes},
          {"drift_bytes", drift->drift_bytes},
          {"overhead_bytes", drift->overhead_bytes},
          {"growth_bytes", drift->growth_bytes},
          {"own_bytes", optional_json(drift->own_bytes)},
          {"context_bytes", optional_json(drift->context_bytes)},
          {"other_bytes", optional_json(drift->other_bytes)}};
}

Json allocations_json(const DeviceAllocations* details) {
  if (details == nullptr) return nullptr;
  Json largest = Json::array();
  for (const AllocationRecord& record : details->largest) {
    largest.push_back({{"pointer", fmt::format("{}", fmt::ptr(record.pointer))},
                       {"bytes", record.bytes},
                       {"purpose", name_of(record.purpose)},
                       {"kind", name_of(record.kind)},
                       {"description", record.description}});
  }
  return largest;
}

}  // namespace

Json device_json(const DeviceHealth& device, const DeviceAllocations* details) {
  return {{"name", device.name},
          {"policy", name_of(device.policy)},
          {"resident", device.resident},
          {"memory",
           {{"total_bytes", device.memory.total_bytes}, {"free_bytes", device.memory.free_bytes}}},
          {"usage", breakdown_json(device.usage)},
          {"drift", drift_json(device.drift)},
          {"allocations_checked", device.allocations_checked},
          {"largest_allocations", allocations_json(details)}};
}

}  // namespace kvarena
