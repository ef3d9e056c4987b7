#pragma once

/// @file
/// `PressureLog`: a pool's changes of pressure as log lines. A change to or from a critical level
/// is a warning, any other is a remark (info). Each severity has a budget of its own, so that a
/// figure that trembles about a harmless threshold never uses up the lines of a shortage. One
/// thread at a time; time is given.

#include "health/line_budget.hpp"

#include "kvarena/base/log.hpp"
#include "kvarena/health/pressure.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena {

/// The lines of one pool.
class PressureLog {
 public:
  explicit PressureLog(std::string pool) : pool_(std::move(pool)) {}

  /// Each look: what it changed, and the level now. Sums up first what was left out in windows that
  /// are over.
  void write(const std::optional<PressureEvent>& event, PressureLevel level, std::int64_t now_ns);
  /// No look follows: sums up what has been left out, whether its window is over or not. What host
  /// memory does not suffice for is lost.
  void close(PressureLevel level) noexcept;

 private:
  /// The lines of one severity.
  struct Channel {
    LogLevel severity;
    LineBudget budget{};
    PressureLevel worst = PressureLevel::normal;  // of what was left out, entered or left
  };
  void sum_up(Channel& channel, std::int64_t left_out, PressureLevel level);

  std::string pool_;
  Channel alarms_{LogLevel::warning};
  Channel remarks_{LogLevel::info};
};

}  // namespace kvarena
