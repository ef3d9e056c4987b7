#pragma once

/// @file
/// `HealthState`: what is wrong, since when, and whether anybody still looks. Pure: it asks nothing
/// and has no clock; whoever looks tells it what was found and what time it is. One thread at a
/// time.
///
/// Violations last until they are acknowledged; every other reason lasts as long as it is found. A
/// check that does not end and checks that do not come are reasons that only the time tells.

#include "kvarena/health/health_report.hpp"

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvarena {

/// Names a reason: from look to look, the same trouble of the same object is the same reason.
struct ReasonKey {
  HealthReasonCode code = HealthReasonCode::not_checked;
  std::uint64_t watch = 0;    ///< the watched device or pool
  std::uint64_t object = 0;   ///< of it: an allocation's serial, a ticket
  std::uint64_t variant = 0;  ///< of the trouble: the place where the allocation is instead

  friend auto operator<=>(const ReasonKey&, const ReasonKey&) = default;
};

/// What a look found wrong.
struct Finding {
  ReasonKey key;     ///< which trouble
  std::string text;  ///< for people
};

/// The reasons of one monitor.
class HealthState {
 public:
  /// Nothing has been checked, from `now_ns` on.
  HealthState(std::int64_t period_ns, std::int64_t check_limit_ns, std::int64_t now_ns)
      : period_ns_(period_ns), check_limit_ns_(check_limit_ns), created_ns_(now_ns) {}

  /// A check has begun.
  void begin_check(std::int64_t now_ns);
  /// It has looked at everything.
  void complete_check(std::int64_t now_ns);
  /// It has ended before that.
  void abandon_check() { is_running_ = false; }
  /// A look, which is less than a check, has begun; it may hang as well.
  void begin_look(std::int64_t now_ns) { look_began_ns_ = now_ns; }
  /// It has ended.
  void end_look() { look_began_ns_.reset(); }
  /// When the next check should begin.
  std::int64_t next_check_ns() const;

  /// `watch` counts as not checked until found says otherwise.
  void expect(std::uint64_t watch, std::string text, std::int64_t now_ns);
  /// All that is wrong with `watch` now, in place of what was found of it before. Returns the
  /// reasons that have appeared. O(reasons).
  std::vector<HealthReason> found(std::uint64_t watch, std::span<const Finding> findings,
                                  std::int64_t now_ns);
  /// `watch` is no longer watched. Its violations stay.
  void forget(std::uint64_t watch);
  /// Violations go.
  void acknowledge();

  /// What is wrong at `now_ns`, by code. O(reasons).
  std::vector<HealthReason> reasons(std::int64_t now_ns) const;
  /// How checks went.
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
  std::int64_t begun_ns_ = 0;   // the last check; meaningless before the first
  bool has_begun_ = false;      // whether there was one
  std::int64_t looked_ns_ = 0;  // when the last complete check began
};

}  // namespace kvarena
