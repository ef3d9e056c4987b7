#pragma once

/// @file
/// Memory of a device for a test, freed with its owner.

#include "kvarena/device/device.hpp"

#include <cstdint>
#include <utility>

namespace kvarena::test {

/// Bytes on a device (IntermediateBuffers). Move-only; the device must outlive it, and its work on
/// the bytes be over when it goes.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Returns what Device::allocate returns.
  static Result<DeviceBuffer> create(Device& device, std::uint64_t bytes) {
    const Result<void*> memory = device.allocate({.bytes = bytes == 0 ? 1 : bytes,
                                                  .purpose = MemoryPurpose::intermediate_buffers,
                                                  .description = "test buffer"});
    if (!memory) return memory.status();
    return DeviceBuffer(device, *memory);
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) static_cast<void>(device_->free(data_));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    return *this;
  }

  /// First byte, on the device.
  void* data() const noexcept { return data_; }

 private:
  DeviceBuffer(Device& device, void* data) noexcept : device_(&device), data_(data) {}

  Device* device_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace kvarena::test
