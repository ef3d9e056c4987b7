#pragma once

/// @file
/// `HealthState`: the reasons why a process is unhealthy, their times, and the times of the checks.
/// It has no clock and asks nothing. Its caller gives it the findings and the time. One thread at a
/// time.
///
/// A violation lasts until it is acknowledged. Every other reason lasts as long as it is found. A
/// hung check and missing checks are derived from the time.

#include "kvarena/health/health_report.hpp"

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvarena {

/// The identity of a reason. The same failure of the same object is the same reason in every look.
struct ReasonKey {
  HealthReasonCode code = HealthReasonCode::not_checked;
  std::uint64_t watch = 0;    ///< the watched device or pool
  std::uint64_t object = 0;   ///< part of it: an allocation's serial, a ticket
  std::uint64_t variant = 0;  ///< variant of the failure: the wrong place of an allocation

  friend auto operator<=>(const ReasonKey&, const ReasonKey&) = default;
};

/// One failure that a look or check found.
struct HealthFinding {
  ReasonKey key;     ///< the identity of the failure
  std::string text;  ///< for people
};

/// The reasons of one monitor.
class HealthState {
 public:
  /// Makes a state in which nothing has been checked, from `now_ns` on.
  HealthState(std::int64_t period_ns, std::int64_t check_limit_ns, std::int64_t now_ns)
      : period_ns_(period_ns), check_limit_ns_(check_limit_ns), created_ns_(now_ns) {}

  void begin_check(std::int64_t now_ns);
  /// Says that the check has looked at everything.
  void complete_check(std::int64_t now_ns);
  /// Says that the check has ended before it looked at everything.
  void abandon_check() { is_running_ = false; }
  /// Says that a look has begun. A look can hang too.
  void begin_look(std::int64_t now_ns) { look_began_ns_ = now_ns; }
  void end_look() { look_began_ns_.reset(); }
  std::int64_t next_check_ns() const;

  /// Counts `watch` as not checked until a call of found() for it.
  void expect(std::uint64_t watch, std::string text, std::int64_t now_ns);
  /// Replaces the findings of `watch` by `findings`. Returns the reasons that have appeared.
  /// O(reasons).
  std::vector<HealthReason> found(std::uint64_t watch, std::span<const HealthFinding> findings,
                                  std::int64_t now_ns);
  /// Forgets a watch. Its violations stay.
  void forget(std::uint64_t watch);
  void acknowledge();

  /// Returns the reasons at `now_ns`, by code. O(reasons).
  std::vector<HealthReason> reasons(std::int64_t now_ns) const;
  const CheckFigures& checks() const noexcept { return checks_; }

 private:
  std::int64_t period_ns_;
  std::int64_t check_limit_ns_;
  std::int64_t created_ns_;
  std::map<ReasonKey, HealthReason> reasons_;
  CheckFigures checks_;
  bool is_running_ = false;
  bool has_found_ = false;  // since the last check began
  std::optional<std::int64_t> look_began_ns_;
  std::int64_t begun_ns_ = 0;   // begin of the last check; undefined before the first
  bool has_begun_ = false;      // whether a check has begun
  std::int64_t looked_ns_ = 0;  // begin of the last complete check
};

}  // namespace kvarena
