#pragma once

/// @file
/// `ProgressBar`: one line on a terminal's standard error, redrawn a few times a second: share
/// done, rate, time left. It draws nothing when standard error is not a terminal or the command is
/// quiet.

#include "replay/instruments.hpp"
#include "tools/console.hpp"

#include "kvarena/base/clock.hpp"

#include <cstdint>
#include <string>

namespace kvarena::tools {

/// Draws progress; erases its line when destroyed.
class ProgressBar : public replay::ProgressSink {
 public:
  ProgressBar(const Console& console, const Clock& clock);
  ~ProgressBar() override;
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void on_progress(const replay::ReplayProgress& progress) override;
  /// Removes the line, for other messages.
  void erase();

 private:
  const Console& console_;
  const Clock& clock_;
  bool enabled_;
  bool drawn_ = false;
  std::int64_t start_ns_;
  std::int64_t next_ns_;
};

/// The line's text without escapes, for `elapsed_s` seconds of real time.
std::string progress_line(const replay::ReplayProgress& progress, double elapsed_s);

}  // namespace kvarena::tools
