#pragma once

/// @file
/// `DeviceBuffer`: owns memory of a device and frees it. Failures inside the meters are thrown as
/// `Failure`. The meters' public calls return them as a Status.

#include "kvarena/device/device.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvarena::meter {

/// Why a measurement ended.
struct Failure {
  Status status;
};

/// Throws a failed status.
inline void require(const Status& status) {
  if (!status) throw Failure{status};
}

/// The part of a pool that a problem's blocks lie in.
struct PoolPart {
  std::byte* base;     ///< of block 0
  std::int64_t bytes;  ///< of whole and broken blocks
};

/// Part `index` of `parts` equal ones of a pool.
inline PoolPart part_of(const PoolPart& pool, std::size_t index, std::size_t parts) {
  constexpr std::int64_t kAlignment = 4096;
  if (parts == 1) return pool;
  const std::int64_t bytes =
      pool.bytes / static_cast<std::int64_t>(parts) / kAlignment * kAlignment;
  return {pool.base + static_cast<std::int64_t>(index) * bytes, bytes};
}

/// Owns one allocation; move-only. The device must outlive it.
class DeviceBuffer {
 public:
  /// Throws Failure with what Device::allocate returned.
  DeviceBuffer(Device& device, std::int64_t bytes, MemoryPurpose purpose) : device_(&device) {
    Result<void*> memory =
        device.allocate({.bytes = static_cast<std::uint64_t>(std::max<std::int64_t>(1, bytes)),
                         .purpose = purpose,
                         .description = "attention meter"});
    require(memory.status());
    memory_ = *memory;
  }
  ~DeviceBuffer() {
    if (memory_ != nullptr) static_cast<void>(device_->free(memory_));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(other.device_), memory_(std::exchange(other.memory_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;

  /// The first byte, or element.
  template <class T = std::byte>
  T* data() const noexcept {
    return static_cast<T*>(memory_);
  }

 private:
  Device* device_;
  void* memory_ = nullptr;
};

}  // namespace kvarena::meter
