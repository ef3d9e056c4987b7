#include "scenarios/plane_residency.hpp"

#include "kvarena/device/residency.hpp"

#include <fmt/format.h>

namespace kvarena::replay::pressure {

Result<PlaneResidency> check_planes(const Device& device, const Arena& arena) {
  PlaneResidency seen;
  const BlockId first{0};
  const BlockId last{static_cast<std::int32_t>(arena.num_blocks() - 1)};
  for (const PlaneSpec& plane : arena.layout().planes()) {
    ++seen.planes;
    const auto bytes = static_cast<std::uint64_t>(
        arena.layout().plane_bytes(arena.layout().plane_of(plane.layer, plane.kind)));
    for (const BlockId block : {first, last}) {
      ++seen.ranges;
      const Result<Placement> found =
          device.place_of(arena.address(block, plane.layer, plane.kind), bytes);
      if (!found) return found.status();
      const std::string place(name_of(found->place));
      if (seen.place.find(place) == std::string::npos) {
        seen.place += (seen.place.empty() ? "" : ", ") + place;
      }
      if (is_permitted(found->place, MemoryKind::device, device.policy())) {
        ++seen.permitted;
      } else if (seen.first_violation.empty()) {
        seen.first_violation = fmt::format("{} of layer {}, block {}: {} ({})",
                                           plane.kind == PlaneKind::key ? "K" : "V", plane.layer,
                                           block.value, place, found->driver_said);
      }
    }
  }
  return seen;
}

MaybeFailure expect_resident(ScenarioReport& report, const std::string& moment,
                             const Device& device, const Arena& arena) {
  const Result<PlaneResidency> planes = check_planes(device, arena);
  if (!planes) return unexpected("place_of", planes.status());
  const ResidencyReport all = verify_residency(device);
  if (!all.status) return unexpected("verify_residency", all.status);
  const bool on_gpu = device.kind() == DeviceKind::cuda;
  report.expect(
      fmt::format("place of {} K and V planes, {}", planes->planes, moment),
      fmt::format("{} of {} ranges {}", planes->ranges, planes->ranges,
                  on_gpu ? "vram" : "host_device"),
      planes->first_violation.empty()
          ? fmt::format("{} of {} ranges {}", planes->permitted, planes->ranges, planes->place)
          : planes->first_violation,
      planes->permitted == planes->ranges &&
          planes->place == name_of(on_gpu ? MemoryPlace::vram : MemoryPlace::host_device));
  report.expect(fmt::format("residency of all tracked allocations, {}", moment),
                fmt::format("0 violations, resident {}", on_gpu),
                all.violations.empty() ? fmt::format("0 violations of {} checked, resident {}",
                                                     all.checked, all.resident)
                                       : describe(all.violations.front()),
                all.violations.empty() && all.checked > 0 && all.resident == on_gpu);
  return std::nullopt;
}

}  // namespace kvarena::replay::pressure
