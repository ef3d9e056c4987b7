#pragma once

/// @file
/// `FaultyMemoryDevice`: a host device with one defect in its memory, planted on purpose, so that
/// tests prove that the matching scenario finds it. Everything else is the inner device's. Borrows
/// it; gives back what it lost when it goes. As thread-safe as the inner device.

#include "device/forwarding_device.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

namespace kvarena::test {

/// The defect.
enum class MemoryFault : std::uint8_t {
  leak,        ///< now and then KV memory that is freed does not go back
  byte_count,  ///< KV memory is an eighth larger than was asked for
  residency,   ///< KV memory is said to lie elsewhere
};

/// Forwards to a device, but for its defect.
class FaultyMemoryDevice final : public ForwardingDevice {
 public:
  /// `inner` outlives this.
  FaultyMemoryDevice(Device& inner, MemoryFault fault) noexcept
      : ForwardingDevice(inner), fault_(fault) {}
  ~FaultyMemoryDevice() override {
    for (void* pointer : lost_) static_cast<void>(ForwardingDevice::free(pointer));
  }

  Result<void*> allocate(const AllocationRequest& request) override {
    AllocationRequest asked = request;
    if (fault_ == MemoryFault::byte_count && request.purpose == MemoryPurpose::kv_cache) {
      asked.bytes += std::max<std::uint64_t>(1, request.bytes / 8);
    }
    return ForwardingDevice::allocate(asked);
  }
  Status free(void* pointer) override {
    return loses(pointer) ? Status{} : ForwardingDevice::free(pointer);
  }
  Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const override {
    if (fault_ != MemoryFault::residency || !is_kv(pointer)) {
      return ForwardingDevice::place_of(pointer, bytes);
    }
    return Placement{
        .place = MemoryPlace::pageable_host, .pointer = pointer, .driver_said = "a planted fault"};
  }

 private:
  bool is_kv(const void* pointer) const {
    const Result<AllocationRecord> record = tracker().find(pointer);
    return record && record->purpose == MemoryPurpose::kv_cache;
  }
  /// Rare and few, as leaks are: neither the first cycle shows it nor a device that is full.
  bool loses(void* pointer) {
    if (fault_ != MemoryFault::leak || !is_kv(pointer)) return false;
    const std::scoped_lock lock(mutex_);
    if (++num_kv_frees_ % 3 != 0 || lost_.size() == 8) return false;
    lost_.push_back(pointer);
    return true;
  }

  const MemoryFault fault_;
  std::mutex mutex_;  // guards what follows
  std::int64_t num_kv_frees_ = 0;
  std::vector<void*> lost_;
};

}  // namespace kvarena::test
