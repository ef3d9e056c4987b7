#pragma once

/// @file
/// Collects the library's log lines while it lives, then silences the library again.

#include "kvarena/base/log.hpp"

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::test {

/// One at a time; thread-safe.
class LogCapture {
 public:
  /// One line.
  struct Line {
    LogLevel level;
    std::string text;
  };

  /// Collects lines of `minimum` and above.
  explicit LogCapture(LogLevel minimum) {
    set_log_sink(
        [this](LogLevel level, std::string_view text) {
          const std::scoped_lock lock(mutex_);
          lines_.push_back({level, std::string(text)});
        },
        minimum);
  }
  ~LogCapture() { set_log_sink({}); }
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  /// What has been logged so far.
  std::vector<Line> lines() const {
    const std::scoped_lock lock(mutex_);
    return lines_;
  }
  /// Whether a line of `level` contains `text`.
  bool contains(LogLevel level, std::string_view text) const {
    for (const Line& line : lines()) {
      if (line.level == level && line.text.find(text) != std::string::npos) return true;
    }
    return false;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace kvarena::test
