#pragma once

/// @file
/// A host device that passes for a GPU: policy vram_only, and what it gave out is VRAM by its
/// driver's word. On request the driver says something else of an allocation, cannot be asked, is
/// lost, hangs, or finds memory used that nobody recorded. Calls may come from any thread.

#include "device/forwarding_device.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

namespace kvarena::test {

/// Wraps a host device, which must outlive this.
class LyingDevice final : public ForwardingDevice {
 public:
  explicit LyingDevice(Device& inner) : ForwardingDevice(inner) {}

  /// From now on `pointer` is said to be `place`; `vram` is the truth again.
  void claim(const void* pointer, MemoryPlace place) {
    const std::scoped_lock lock(mutex_);
    claims_[pointer] = place;
  }
  /// From now on questions about memory return `failure`; ok: are answered again.
  void set_unreachable(Status failure) {
    const std::scoped_lock lock(mutex_);
    unreachable_ = failure;
  }
  /// From now on the device is lost to this error; 0: it is not.
  void set_lost(std::int32_t native) {
    const std::scoped_lock lock(mutex_);
    lost_to_ = native;
  }
  /// From now on so much more is used than was recorded.
  void set_unrecorded(std::uint64_t bytes) {
    const std::scoped_lock lock(mutex_);
    unrecorded_bytes_ = bytes;
  }
  /// From now on questions about places wait until the driver recovers.
  void hang() {
    const std::scoped_lock lock(mutex_);
    hangs_ = true;
  }
  /// Answers go on.
  void recover() {
    {
      const std::scoped_lock lock(mutex_);
      hangs_ = false;
    }
    changed_.notify_all();
  }
  /// Returns once a thread hangs in here.
  void await_victim() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return num_hanging_ > 0; });
  }

  std::string name() const override { return "lying " + ForwardingDevice::name(); }
  ResidencyPolicy policy() const noexcept override { return ResidencyPolicy::vram_only; }
  Result<Placement> place_of(const void* pointer, std::uint64_t bytes) const override {
    std::unique_lock lock(mutex_);
    ++num_hanging_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !hangs_; });
    --num_hanging_;
    if (!unreachable_) return unreachable_;
    if (const auto claim = claims_.find(pointer); claim != claims_.end()) {
      return Placement{claim->second, 0, pointer, "a planted lie"};
    }
    lock.unlock();
    Result<Placement> placement = ForwardingDevice::place_of(pointer, bytes);
    if (placement && placement->place == MemoryPlace::host_device) {
      placement->place = MemoryPlace::vram;
    }
    return placement;
  }
  Result<MemoryInfo> memory_info() const override {
    Result<MemoryInfo> info = ForwardingDevice::memory_info();
    const std::scoped_lock lock(mutex_);
    if (!unreachable_) return unreachable_;
    if (info) info->free_bytes -= std::min(info->free_bytes, unrecorded_bytes_);
    return info;
  }
  std::int32_t lost_to() const noexcept override {
    const std::scoped_lock lock(mutex_);
    return lost_to_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable int num_hanging_ = 0;
  bool hangs_ = false;
  std::map<const void*, MemoryPlace> claims_;
  Status unreachable_;
  std::int32_t lost_to_ = 0;
  std::uint64_t unrecorded_bytes_ = 0;
};

}  // namespace kvarena::test
