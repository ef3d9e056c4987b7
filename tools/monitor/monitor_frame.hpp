#pragma once

/// @file
/// `MonitorFrame`: one look of `kvarena monitor`, ready to be shown; `MonitorSource` makes them,
/// with `LineFields` for the lines of logs, and `LiveView` draws them on a terminal.

#include "tools/console.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {

/// One look.
struct MonitorFrame {
  std::vector<std::string> lines;   ///< for a terminal, without escapes; the first is the title
  std::string line;                 ///< the same in one line, for logs
  nlohmann::ordered_json document;  ///< the same for programs
  bool healthy = true;              ///< false: --once fails, the title is red
  std::string happened;             ///< why there is no look; empty: there is one
  std::string advice;               ///< what to do then

  bool is_ok() const noexcept { return happened.empty(); }
};

/// Looks again and again.
class MonitorSource {
 public:
  virtual ~MonitorSource() = default;
  /// Returns the present look.
  virtual MonitorFrame look() = 0;
};

/// Builds a line for logs: a word, then key=value pairs as logfmt has them. Text has to be
/// printable already.
class LineFields {
 public:
  /// `first` is the line's first word.
  explicit LineFields(std::string_view first) { append(first); }

  /// A value with a space, '=' or '"', or none at all, is quoted; its quotes become apostrophes.
  void add(std::string_view key, std::string_view value);
  /// "1.50GiB": as people read it, without a space.
  void add_bytes(std::string_view key, std::int64_t bytes);

  const std::string& text() const noexcept { return text_; }

 private:
  void append(std::string_view value);

  std::string text_;
};

/// Returns the part of `lines` that fits on a terminal of that size above the cursor's line. Lines
/// are cut to the columns. When there are too many lines, the first ones stay, and a last line says
/// how many are hidden. Nothing is cut when a size is 0 (unknown). Text is UTF-8; a code point
/// takes one column.
std::vector<std::string> fit_lines(std::vector<std::string> lines, TerminalSize size);

/// A few lines on a terminal; each look is drawn in the place of the one before. What was on the
/// terminal before stays, and the last lines stay when the program ends. Only one LiveView at a
/// time on a terminal.
class LiveView {
 public:
  /// Draws on `out`, which is one of the console's.
  LiveView(const Console& console, std::ostream& out) : console_(console), out_(out) {}

  /// Draws `lines` in the place of the lines before. The first line is the title, green or red.
  void draw(const std::vector<std::string>& lines, bool good);

 private:
  const Console& console_;
  std::ostream& out_;
  TerminalSize size_;
  std::size_t drawn_lines_ = 0;
};

}  // namespace kvarena::tools
