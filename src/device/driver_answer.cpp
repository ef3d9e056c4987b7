#include "device/driver_answer.hpp"

#include <spdlog/fmt/fmt.h>

#include <string_view>

namespace kvarena {
namespace {

std::string_view name_of(RuntimeMemory type) noexcept {
  switch (type) {
    case RuntimeMemory::unregistered: return "cudaMemoryTypeUnregistered";
    case RuntimeMemory::host: return "cudaMemoryTypeHost";
    case RuntimeMemory::device: return "cudaMemoryTypeDevice";
    case RuntimeMemory::managed: return "cudaMemoryTypeManaged";
  }
  return "an unknown cudaMemoryType";
}

std::string_view name_of(DriverMemory memory) noexcept {
  switch (memory) {
    case DriverMemory::none: return "none";
    case DriverMemory::host: return "host";
    case DriverMemory::device: return "device";
    case DriverMemory::array: return "array";
    case DriverMemory::unified: return "unified";
  }
  return "unknown";
}

}  // namespace

/// Any sign of managed or host memory decides before device memory is considered.
MemoryPlace place_of(const DriverAnswer& answer, std::int32_t ordinal,
                     bool is_integrated) noexcept {
  const bool is_managed = answer.is_managed || answer.type == RuntimeMemory::managed ||
                          answer.memory == DriverMemory::unified;
  if (is_managed) return MemoryPlace::managed;
  if (answer.type == RuntimeMemory::host || answer.memory == DriverMemory::host) {
    return MemoryPlace::pinned_host;
  }
  if (answer.type != RuntimeMemory::device || answer.memory != DriverMemory::device) {
    return MemoryPlace::pageable_host;
  }
  // Device memory that the host reaches by a pointer is host memory.
  if (answer.host_pointer != nullptr) return MemoryPlace::pinned_host;
  if (answer.device != ordinal || answer.ordinal != ordinal) return MemoryPlace::other_device;
  return is_integrated ? MemoryPlace::integrated : MemoryPlace::vram;
}

std::int32_t owner_of(const DriverAnswer& answer) noexcept {
  return answer.type == RuntimeMemory::unregistered ? -1 : answer.device;
}

std::uint64_t bytes_from(const DriverAnswer& answer, std::uint64_t address) noexcept {
  const std::uint64_t offset = address - answer.range_first;
  return offset < answer.range_bytes ? answer.range_bytes - offset : 0;
}

std::string to_string(const DriverAnswer& answer) {
  return fmt::format(
      "type {}, device {}, devicePointer {}, hostPointer {}; MEMORY_TYPE {}, IS_MANAGED {:d}, "
      "DEVICE_ORDINAL {}, RANGE {:#x} + {} bytes, MAPPED {:d}, ALLOWED_HANDLE_TYPES {:#x}",
      name_of(answer.type), answer.device, fmt::ptr(answer.device_pointer),
      fmt::ptr(answer.host_pointer), name_of(answer.memory), answer.is_managed, answer.ordinal,
      answer.range_first, answer.range_bytes, answer.is_mapped, answer.allowed_handles);
}

}  // namespace kvarena
