#include "scenarios/faulty_memory_device.hpp"

#include <algorithm>

namespace kvarena::replay::pressure {
namespace {

// Rare and few, as leaks are: neither the first cycle shows it nor a device that is full.
constexpr std::int64_t kLeakEvery = 3;
constexpr std::size_t kMostLost = 8;
constexpr std::uint64_t kExtraShare = 8;

}  // namespace

FaultyMemoryDevice::~FaultyMemoryDevice() {
  for (void* pointer : lost_) static_cast<void>(ForwardingDevice::free(pointer));
}

bool FaultyMemoryDevice::is_kv(const void* pointer) const {
  const Result<AllocationRecord> record = tracker().find(pointer);
  return record && record->purpose == MemoryPurpose::kv_cache;
}

bool FaultyMemoryDevice::loses(void* pointer) {
  if (fault_ != PressureFault::leak || !is_kv(pointer)) return false;
  const std::scoped_lock lock(mutex_);
  if (++num_kv_frees_ % kLeakEvery != 0 || lost_.size() == kMostLost) return false;
  lost_.push_back(pointer);
  return true;
}

Result<void*> FaultyMemoryDevice::allocate(const AllocationRequest& request) {
  if (fault_ != PressureFault::byte_count || request.purpose != MemoryPurpose::kv_cache) {
    return ForwardingDevice::allocate(request);
  }
  AllocationRequest larger = request;
  larger.bytes += std::max<std::uint64_t>(1, request.bytes / kExtraShare);
  return ForwardingDevice::allocate(larger);
}

Result<Placement> FaultyMemoryDevice::place_of(const void* pointer, std::uint64_t bytes) const {
  if (fault_ != PressureFault::residency || !is_kv(pointer)) {
    return ForwardingDevice::place_of(pointer, bytes);
  }
  return Placement{.place = MemoryPlace::pageable_host,
                   .pointer = pointer,
                   .driver_said = "a fault planted by --fault residency"};
}

Status FaultyMemoryDevice::free(void* pointer) {
  return loses(pointer) ? Status{} : ForwardingDevice::free(pointer);
}

}  // namespace kvarena::replay::pressure
