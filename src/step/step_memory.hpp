#pragma once

/// @file
/// The memory of a step's tables: places of arrays in it, and the two allocations that have them.

#include "kvarena/base/result.hpp"
#include "kvarena/device/device.hpp"

#include <cstddef>
#include <cstdint>

namespace kvarena {

/// `value` rounded up to a multiple of `unit`.
constexpr std::int64_t rounded_up(std::int64_t value, std::int64_t unit) noexcept {
  return (value + unit - 1) / unit * unit;
}

/// Assigns places to arrays, one behind another, each at a multiple of 256 bytes.
class Places {
 public:
  /// Returns the place of an array of `count` elements.
  template <class T>
  std::int64_t take(std::int64_t count) noexcept {
    const std::int64_t place = end_;
    end_ = rounded_up(end_ + count * static_cast<std::int64_t>(sizeof(T)), kAlignment);
    return place;
  }
  /// The bytes of all arrays.
  std::int64_t end() const noexcept { return end_; }

 private:
  static constexpr std::int64_t kAlignment = 256;
  std::int64_t end_ = 0;
};

/// Device memory for the arrays of a step, and pinned memory for its staging ring. Owns both and
/// frees them at its end. Move-only.
class StepMemory {
 public:
  struct Sizes {
    std::int64_t device_bytes = 0;
    std::int64_t ones = 0;  ///< the first bytes of these, which are filled with 0xff; the rest is 0
    std::int64_t staging_bytes = 0;  ///< all zero
  };
  /// Allocates both, fills them and waits. Returns what the calls of the device return; nothing is
  /// kept then.
  static Result<StepMemory> create(Device& device, const Sizes& sizes);
  ~StepMemory();
  StepMemory(StepMemory&& other) noexcept;
  StepMemory& operator=(StepMemory&&) = delete;

  std::byte* arrays() const noexcept { return arrays_; }
  std::byte* staging() const noexcept { return staging_; }

 private:
  explicit StepMemory(Device& device) noexcept : device_(&device) {}

  Device* device_;
  std::byte* arrays_ = nullptr;
  std::byte* staging_ = nullptr;
};

}  // namespace kvarena
