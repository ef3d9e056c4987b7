#pragma once

/// @file
/// A clock that a test sets. Thread-safe.

#include "kvarena/base/clock.hpp"

#include <atomic>
#include <cstdint>

namespace kvarena::test {

/// Stands still until told to go on.
class ManualClock : public Clock {
 public:
  std::int64_t now_ns() const noexcept override { return now_ns_.load(); }
  /// Goes on by `ns`.
  void advance(std::int64_t ns) noexcept { now_ns_ += ns; }

 private:
  std::atomic<std::int64_t> now_ns_{0};
};

}  // namespace kvarena::test
