#pragma once

/// @file
/// The points of a stream that lie behind a failure. Of the failures that were taken, the last is
/// remembered, and how many there were. Plain state; its owner locks.

#include "kvarena/base/status.hpp"

#include <cstdint>

namespace kvarena {

/// The failures of one stream.
class StreamFailures {
 public:
  /// Returns the failure that nobody has taken yet, or ok.
  const Status& current() const noexcept { return current_.status; }
  /// Notes that the operation that ends at `position` failed. Only the first failure counts.
  void fail(const Status& status, std::uint64_t position) noexcept {
    if (!current_.status.is_ok()) return;
    current_.status = status;
    current_.first = position;
  }
  /// Returns the failure that lies before `position`, or ok.
  Status at(std::uint64_t position) const noexcept {
    if (current_.covers(position)) return current_.status;
    return taken_.covers(position) ? taken_.status : Status{};
  }
  /// Takes the current failure. Points up to `last` stay behind it; later points do not.
  Status take(std::uint64_t last) noexcept {
    const Status status = current_.status;
    if (status.is_ok()) return status;
    ++num_taken_;
    taken_ = current_;
    taken_.last = last;
    current_ = {};
    return status;
  }
  /// Returns how often take has returned a failure.
  std::uint64_t num_taken() const noexcept { return num_taken_; }

 private:
  /// A failure and the points behind it, [first, last].
  struct Failure {
    Status status;
    std::uint64_t first = 0;
    std::uint64_t last = UINT64_MAX;

    bool covers(std::uint64_t position) const noexcept {
      return !status.is_ok() && position >= first && position <= last;
    }
  };
  Failure current_;
  Failure taken_;
  std::uint64_t num_taken_ = 0;
};

}  // namespace kvarena
