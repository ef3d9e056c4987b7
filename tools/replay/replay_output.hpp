#pragma once

/// @file
/// A replay's report as JSON and as text for people: the same figures, from the same struct. And
/// `ProgressBar`, which people see until then. Groups and pages (group_output.cpp), and a prefix
/// cache (prefix_output.cpp), have functions of their own.

#include "replay/instruments.hpp"
#include "replay/replay_options.hpp"
#include "replay/replay_report.hpp"
#include "tools/console.hpp"

#include "kvarena/base/clock.hpp"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <ostream>
#include <string>

namespace kvarena::tools {

/// One object; docs/reference/command.md describes every field.
nlohmann::ordered_json json_of(const replay::ReplayOptions& options,
                               const replay::ReplayOutcome& outcome);

/// The summary, with colours as `stream` (one of the console's) allows.
std::string summary_of(const Console& console, const std::ostream& stream,
                       const replay::ReplayOptions& options, const replay::ReplayOutcome& outcome,
                       const std::string& model_name);

/// One line on a terminal's standard error, redrawn a few times a second: share done, rate, time
/// left. It draws nothing when standard error is not a terminal or the command is quiet. It erases
/// its line when destroyed.
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

/// Returns the groups, or null without groups.
nlohmann::ordered_json groups_json(const replay::ReplayReport& report);
/// Returns pages and waste, or null without groups.
nlohmann::ordered_json pages_json(const replay::ReplayReport& report);
/// Returns the lines of the summary about groups and waste; none without groups.
std::string group_lines(const replay::ReplayReport& report);
/// Returns the line of the pages' account; none without groups.
std::string page_account_line(const replay::ReplayReport& report);

/// Returns the figures, or null without a prefix cache.
nlohmann::ordered_json prefix_json(const replay::ReplayReport& report);
/// Returns the lines of the summary; none without a prefix cache.
std::string prefix_lines(const replay::ReplayOptions& options, const replay::ReplayReport& report);

}  // namespace kvarena::tools
