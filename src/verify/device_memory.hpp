#pragma once

/// @file
/// `DeviceMemory`: owns one allocation of a device and frees it. Move-only. The device must outlive
/// it. Work that uses the memory must have ended before the destructor.

#include "kvarena/device/device.hpp"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvarena::verify {

/// Bytes on a device, or pinned bytes on its host.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  /// Allocates `bytes` bytes, at least one. Returns what Device::allocate returns.
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

  template <class T = std::byte>
  T* data() const noexcept {
    return static_cast<T*>(data_);
  }
  /// Returns the size that create was called with.
  std::int64_t bytes() const noexcept { return bytes_; }

 private:
  DeviceMemory(Device& device, void* data, std::int64_t bytes) noexcept
      : device_(&device), data_(data), bytes_(bytes) {}

  Device* device_ = nullptr;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace kvarena::verify
