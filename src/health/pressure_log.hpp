#pragma once

/// @file
/// `PressureLog`: a pool's changes of pressure as log lines. A change to or from a critical level
/// is a warning, any other is a remark (info). Each severity has a budget of its own, so that a
/// figure that trembles about a harmless threshold never uses up the lines of a shortage. One
/// thread at a time; time is given.

#include "kvarena/base/log.hpp"
#include "kvarena/health/pressure.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena {

/// At most `kLines` log lines in `kWindowNs`; what is left out is counted, and the count is due
/// when the window is over. Time is given.
class LineBudget {
 public:
  static constexpr std::int64_t kWindowNs = 10'000'000'000;  ///< from the first line of a burst
  static constexpr std::int64_t kLines = 3;                  ///< written in a window

  /// An event: whether its line is to be written.
  bool admit(std::int64_t now_ns) noexcept {
    if (is_over(now_ns)) {
      begun_ns_ = now_ns;
      num_events_ = 0;
    }
    if (++num_events_ <= kLines) return true;
    ++num_left_out_;
    return false;
  }
  /// Lines left out in a window that is over and not reported yet; 0 then from the next call on.
  std::int64_t take_left_out(std::int64_t now_ns) noexcept {
    return is_over(now_ns) ? take_left_out() : 0;
  }
  /// The same of the window that is not over too.
  std::int64_t take_left_out() noexcept { return std::exchange(num_left_out_, 0); }

 private:
  bool is_over(std::int64_t now_ns) const noexcept {
    return num_events_ == 0 || now_ns - begun_ns_ >= kWindowNs;
  }

  std::int64_t begun_ns_ = 0;
  std::int64_t num_events_ = 0;    // in the window
  std::int64_t num_left_out_ = 0;  // not reported yet
};

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
