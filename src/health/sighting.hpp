#pragma once

/// @file
/// `Sighting`: since when a pool shows what it shows, by the monitor's clock. Of the publisher's
/// clock, which may be another, only durations count. Pure; one thread at a time.

#include "kvarena/step/step_publisher.hpp"

#include <algorithm>
#include <cstdint>

namespace kvarena {

/// The last publication that was seen.
class Sighting {
 public:
  /// The first.
  Sighting(const PoolSnapshot& snapshot, std::int64_t now_ns) noexcept
      : step_(snapshot.step), stamp_ns_(snapshot.published_ns), published_ns_(now_ns) {
    see_ticket(snapshot, now_ns);
  }

  /// Whether `snapshot` is another publication, which then is the last.
  bool see(const PoolSnapshot& snapshot, std::int64_t now_ns) noexcept {
    see_ticket(snapshot, now_ns);
    if (snapshot.step == step_ && snapshot.published_ns == stamp_ns_) return false;
    step_ = snapshot.step;
    stamp_ns_ = snapshot.published_ns;
    published_ns_ = now_ns;
    return true;
  }
  /// When it was first seen.
  std::int64_t published_ns() const noexcept { return published_ns_; }
  /// Since when its oldest ticket is open; meaningless without one.
  std::int64_t ticket_ns() const noexcept { return ticket_ns_; }

 private:
  void see_ticket(const PoolSnapshot& snapshot, std::int64_t now_ns) noexcept {
    if (snapshot.oldest_ticket == ticket_) return;
    ticket_ = snapshot.oldest_ticket;
    const std::int64_t age_ns = snapshot.published_ns - snapshot.oldest_ticket_ns;
    ticket_ns_ = now_ns - std::max<std::int64_t>(0, age_ns);
  }

  std::uint64_t step_;
  std::int64_t stamp_ns_;  // by the publisher's clock; only compared
  std::int64_t published_ns_;
  Ticket ticket_ = kNoTicket;
  std::int64_t ticket_ns_ = 0;
};

}  // namespace kvarena
