#pragma once

/// @file
/// `PressureLog`: logs a pool's changes of pressure. A change to or from a critical level is a
/// warning. Any other change is a remark (info). Each severity has its own budget of lines, so a
/// figure that changes often at a harmless threshold leaves the lines for a shortage. One thread at
/// a time. The caller gives the time.

#include "kvarena/base/log.hpp"
#include "kvarena/health/pressure.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace kvarena {

/// Admits at most `kLines` log lines in `kWindowNs`. Other lines are counted, and the count is
/// reported after the window. The caller gives the time.
class LineBudget {
 public:
  static constexpr std::int64_t kWindowNs = 10'000'000'000;  ///< from the first line of a burst
  static constexpr std::int64_t kLines = 3;                  ///< lines written in a window

  /// Counts an event. Returns whether its line is to be written.
  bool admit(std::int64_t now_ns) noexcept {
    if (is_over(now_ns)) {
      begun_ns_ = now_ns;
      num_events_ = 0;
    }
    if (++num_events_ <= kLines) return true;
    ++num_left_out_;
    return false;
  }
  /// Returns the lines left out in a window that is over, and resets the count; 0 while the window
  /// lasts.
  std::int64_t take_left_out(std::int64_t now_ns) noexcept {
    return is_over(now_ns) ? take_left_out() : 0;
  }
  /// Does the same, also before the window is over.
  std::int64_t take_left_out() noexcept { return std::exchange(num_left_out_, 0); }

 private:
  bool is_over(std::int64_t now_ns) const noexcept {
    return num_events_ == 0 || now_ns - begun_ns_ >= kWindowNs;
  }

  std::int64_t begun_ns_ = 0;
  std::int64_t num_events_ = 0;    // in the window
  std::int64_t num_left_out_ = 0;  // not reported yet
};

/// The log lines of one pool.
class PressureLog {
 public:
  explicit PressureLog(std::string pool) : pool_(std::move(pool)) {}

  /// Logs the change of one look, with the present level. First logs a summary of the lines that
  /// were left out in windows that are over. Call it at each look.
  void write(const std::optional<PressureEvent>& event, PressureLevel level, std::int64_t now_ns);
  /// Logs a summary of all lines that were left out, after the last look. The summary is lost when
  /// host memory is exhausted.
  void close(PressureLevel level) noexcept;

 private:
  struct Channel {
    LogLevel severity;
    LineBudget budget{};
    PressureLevel worst =
        PressureLevel::normal;  // worst level entered or left in a line that was left out
  };
  void sum_up(Channel& channel, std::int64_t left_out, PressureLevel level);

  std::string pool_;
  Channel alarms_{LogLevel::warning};
  Channel remarks_{LogLevel::info};
};

}  // namespace kvarena
