#pragma once

/// @file
/// Which points of a stream lie behind a failure. Of failures already taken, the last is
/// remembered. Plain state; its owner locks.

#include "kvarena/base/status.hpp"

#include <cstdint>

namespace kvarena {

/// The failures of one stream.
class StreamFailures {
 public:
  /// The failure that nobody has taken yet; ok when there is none.
  const Status& current() const noexcept { return current_.status; }
  /// The operation that ends at `position` failed. Only the first failure counts.
  void fail(const Status& status, std::uint64_t position) noexcept {
    if (!current_.status.is_ok()) return;
    current_.status = status;
    current_.first = position;
  }
  /// The failure that `position` lies behind; ok when there is none.
  Status at(std::uint64_t position) const noexcept {
    if (current_.covers(position)) return current_.status;
    return taken_.covers(position) ? taken_.status : Status{};
  }
  /// Takes the current failure: points up to `last` stay behind it, later ones do not.
  Status take(std::uint64_t last) noexcept {
    const Status status = current_.status;
    if (status.is_ok()) return status;
    taken_ = current_;
    taken_.last = last;
    current_ = {};
    return status;
  }

 private:
  /// A failure and the points behind it: those in [first, last].
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
};

}  // namespace kvarena
