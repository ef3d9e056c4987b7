#pragma once

/// @file
/// `Clock`: a source of time that the caller can replace. Time serves only time stamps in reports,
/// deadlines in health checks and progress lines. No allocation or eviction reads a clock.

#include "kvarena/base/export.hpp"

#include <cstdint>

namespace kvarena {

/// A source of monotonic nanoseconds. An implementation must be callable from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Returns the nanoseconds since an arbitrary fixed point. The number never goes back.
  virtual std::int64_t now_ns() const noexcept = 0;
};

/// Returns the machine's monotonic clock: one object of the process, which is never destroyed.
KVARENA_EXPORT const Clock& steady_clock() noexcept;

}  // namespace kvarena
