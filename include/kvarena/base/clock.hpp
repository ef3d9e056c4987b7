#pragma once

/// @file
/// Time, injected. Nothing that allocates or evicts ever reads a clock; this is for time stamps in
/// reports, deadlines in health checks and progress lines.

#include "kvarena/base/export.hpp"

#include <cstdint>

namespace kvarena {

/// A source of monotonic nanoseconds. Implementations must be callable from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Nanoseconds since an arbitrary fixed point; never goes back.
  virtual std::int64_t now_ns() const noexcept = 0;
};

/// The machine's monotonic clock; one process-wide object, never destroyed.
KVARENA_EXPORT const Clock& steady_clock() noexcept;

}  // namespace kvarena
