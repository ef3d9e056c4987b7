#pragma once

/// @file
/// What a device remembers about its last refused allocation, so that a Status of 32 bytes can be
/// explained afterwards. Thread-safe.

#include "kvarena/device/device.hpp"

#include <mutex>
#include <string>

namespace kvarena {

/// The last allocation that a device could not provide.
class AllocationFailure {
 public:
  /// Keeps the numbers of a refused `request`: what was free (of the device, or of the machine for
  /// staging memory) and what memory was used for at that moment; logs the explanation as a
  /// warning. Returns `status`.
  Status keep(const Status& status, const AllocationRequest& request, const MemoryInfo& memory,
              const MemoryBreakdown& breakdown) noexcept;
  /// Keeps the `explanation` of an allocation that was no matter of amount; logs it as an error.
  Status keep(const Status& status, std::string explanation) noexcept;
  /// kvarena::describe(status); when it is the failure kept, followed by its explanation. Another
  /// insufficient_vram or exhausted (host_memory), of a pool that was planned too large or an
  /// earlier one, is followed by what is in use `now`.
  std::string describe(const Status& status, const MemoryBreakdown& now) const noexcept;

 private:
  void keep_description(std::string_view description) noexcept;
  std::string describe_locked(const Status& status) const;

  mutable std::mutex mutex_;
  Status status_;  // ok: none yet
  MemoryPurpose purpose_ = MemoryPurpose::unknown;
  MemoryKind kind_ = MemoryKind::device;
  std::string description_;
  std::string explanation_;  // in place of the rest, when there is one
  MemoryInfo memory_;
  MemoryBreakdown breakdown_;
};

}  // namespace kvarena
