#pragma once

/// @file
/// `DeviceMemory`: one allocation of a device, freed with its owner. Move-only; the device must
/// outlive it, and work that uses it be over when it goes.

#include "kvarena/device/device.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvarena::verify {

/// Bytes on a device, or pinned beside it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// At least one byte. Returns what Device::allocate returns.
  static Result<DeviceMemory> create(Device& device, std::int64_t bytes, std::string_view purpose,
                                     MemoryKind kind = MemoryKind::device) {
    const auto count = static_cast<std::uint64_t>(bytes < 1 ? 1 : bytes);
    const Result<void*> memory = device.allocate({.bytes = count,
                                                  .purpose = MemoryPurpose::intermediate_buffers,
                                                  .kind = kind,
                                                  .description = purpose});
    if (!memory) return memory.status();
    return DeviceMemory(device, *memory, bytes);
  }
  ~DeviceMemory() {
    if (data_ != nullptr) static_cast<void>(device_->free(data_));
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(other.device_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  /// The first byte, or element.
  template <class T = std::byte>
  T* data() const noexcept {
    return static_cast<T*>(data_);
  }
  /// As asked for.
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  DeviceMemory(Device& device, void* data, std::int64_t bytes) noexcept
      : device_(&device), data_(data), bytes_(bytes) {}

  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace kvarena::verify
