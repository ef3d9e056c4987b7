#pragma once

/// @file
/// The memory of a device's last refused allocation. With it a Status of 32 bytes can be explained
/// afterwards. Thread-safe.

#include "kvarena/device/device.hpp"

#include <mutex>
#include <string>

namespace kvarena {

/// The last allocation that a device could not provide.
class AllocationFailure {
 public:
  /// Keeps the numbers of a refused `request`: the free memory (of the device, or of the machine
  /// for staging memory) and the use of memory at that moment. Logs the explanation as a warning.
  /// Returns `status`.
  Status keep(const Status& status, const AllocationRequest& request, const MemoryInfo& memory,
              const MemoryBreakdown& breakdown) noexcept;
  /// Keeps the `explanation` of a failure that has nothing to do with size, and logs it as an
  /// error.
  Status keep(const Status& status, std::string explanation) noexcept;
  /// Returns kvarena::describe(status). The explanation follows when `status` is the failure kept.
  /// The use of memory `now` follows for any other insufficient_vram or exhausted (host_memory),
  /// such as that of an earlier failure or of a pool that was planned too large.
  std::string describe(const Status& status, const MemoryBreakdown& now) const noexcept;

 private:
  void keep_description(std::string_view description) noexcept;
  std::string describe_locked(const Status& status) const;

  mutable std::mutex mutex_;
  Status status_;  // ok: none yet
  MemoryPurpose purpose_ = MemoryPurpose::unknown;
  MemoryKind kind_ = MemoryKind::device;
  std::string description_;
  std::string explanation_;  // when set, it replaces the numbers below
  MemoryInfo memory_;
  MemoryBreakdown breakdown_;
};

}  // namespace kvarena
