#include "kvarena/device/residency.hpp"

#include "base/excerpt.hpp"
#include "base/log_internal.hpp"
#include "base/out_of_memory.hpp"
#include "base/range_checks.hpp"
#include "device/memory_report.hpp"
#include "device/request_checks.hpp"

#include "kvarena/device/device.hpp"

#include <new>
#include <utility>
#include <vector>

namespace kvarena {
namespace {

/// Returns whether the allocation is still the one that was asked about. A freed allocation leaves
/// the tracker before its memory goes back to the driver. An answer about freed memory therefore
/// finds no record here.
bool is_still_recorded(const Device& device, const AllocationRecord& record) {
  const Result<AllocationRecord> found = device.tracker().find(record.pointer);
  return found && found->serial == record.serial;
}

/// The required memory of this kind, for messages.
std::string_view wanted(MemoryKind kind) noexcept {
  return kind == MemoryKind::device ? "device-local memory of this GPU" : "pinned host memory";
}

/// Checks all tracked allocations, for verify_residency.
void judge_all(const Device& device, ResidencyReport& report) {
  report.policy = device.policy();
  const MemoryBreakdown before = device.tracker().breakdown();
  report.unverifiable_bytes = before.reported_bytes;
  std::vector<AllocationRecord> records = device.tracker().allocations();
  const bool is_listed = !records.empty() || before.total.count + before.staging.count == 0;
  if (!is_listed && device.tracker().breakdown().frees_ever == before.frees_ever) {
    report.status = out_of_memory();  // there are allocations, but no memory for their list
    return;
  }
  for (AllocationRecord& record : records) {
    Result<Placement> placement = device.place_of(record.pointer, record.bytes);
    if (!placement && !is_still_recorded(device, record)) continue;
    if (!placement) {
      report.status = placement.status();
      return;
    }
    ++report.checked;
    if (is_permitted(placement->place, record.kind, report.policy)) continue;
    if (!is_still_recorded(device, record)) continue;
    report.violations.push_back({std::move(record), std::move(placement).value()});
  }
  report.resident = report.policy == ResidencyPolicy::vram_only && report.violations.empty();
}

}  // namespace

std::string_view name_of(MemoryPlace place) noexcept {
  switch (place) {
    case MemoryPlace::vram: return "vram";
    case MemoryPlace::other_device: return "other_device";
    case MemoryPlace::integrated: return "integrated";
    case MemoryPlace::managed: return "managed";
    case MemoryPlace::pinned_host: return "pinned_host";
    case MemoryPlace::pageable_host: return "pageable_host";
    case MemoryPlace::host_device: return "host_device";
    case MemoryPlace::mixed: return "mixed";
  }
  return "unknown";
}

std::string_view name_of(ResidencyPolicy policy) noexcept {
  return policy == ResidencyPolicy::vram_only ? "vram_only" : "allow_host";
}

bool is_permitted(MemoryPlace place, MemoryKind kind, ResidencyPolicy policy) noexcept {
  const bool hosts = policy == ResidencyPolicy::allow_host;
  switch (place) {
    case MemoryPlace::vram: return kind == MemoryKind::device;
    case MemoryPlace::pinned_host: return kind == MemoryKind::pinned_staging || hosts;
    case MemoryPlace::integrated:
    case MemoryPlace::managed: return kind == MemoryKind::device && hosts;
    case MemoryPlace::host_device: return hosts;
    case MemoryPlace::other_device:
    case MemoryPlace::pageable_host:
    case MemoryPlace::mixed: break;
  }
  return false;
}

ResidencyReport verify_residency(const Device& device) noexcept {
  ResidencyReport report;
  try {
    judge_all(device, report);
  } catch (const std::bad_alloc&) {
    report.status = out_of_memory();
    report.resident = false;
  }
  return report;
}

std::string describe(const ResidencyViolation& violation) noexcept try {
  const AllocationRecord& record = violation.record;
  const Placement& placement = violation.placement;
  const bool is_inside = placement.pointer != nullptr && placement.pointer != record.pointer;
  return fmt::format(
      "VRAM residency violated: {} {} {} \"{}\" of the {} must be {} but is {}{}; the driver said: "
      "{}",
      fmt::ptr(record.pointer), bytes_text(record.bytes), name_of(record.purpose),
      printable(record.description), name_of(record.owner), wanted(record.kind),
      name_of(placement.place), is_inside ? fmt::format(" at {}", fmt::ptr(placement.pointer)) : "",
      placement.driver_said);
} catch (const std::bad_alloc&) {
  return out_of_memory_text();
}

Status register_memory(Device& device, AllocationRecord record, RegisterCheck check) try {
  if (Status s = check_use(record.kind, record.purpose); !s) return s;
  if (Status s = check_enum(Resource::memory_check, check, RegisterCheck::defer); !s) return s;
  if (!may_hold(record.kind, record.purpose)) return unsupported(Resource::allocation);
  record.owner = AllocationOwner::engine;
  if (check == RegisterCheck::verify && record.pointer != nullptr && record.bytes > 0) {
    const Result<Placement> placement = device.place_of(record.pointer, record.bytes);
    if (!placement) return placement.status();
    if (!is_permitted(placement->place, record.kind, device.policy())) {
      log_text(LogLevel::error, describe(ResidencyViolation{record, *placement}));
      return residency_violated(reinterpret_cast<std::uintptr_t>(record.pointer));
    }
  }
  return device.tracker().record(std::move(record));
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status unregister_memory(Device& device, void* pointer) {
  return device.tracker().erase(pointer, AllocationOwner::engine).status();
}

}  // namespace kvarena
