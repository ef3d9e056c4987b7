#pragma once

/// @file
/// `LiveView`: a few lines on a terminal, redrawn in their place. What was on the terminal before
/// stays, and the last lines stay when the program ends.

#include "tools/console.hpp"

#include <string>
#include <vector>

namespace kvarena::tools {

/// Returns the part of `lines` that fits on a terminal of that size above the cursor's line. Lines
/// are cut to the columns. When there are too many lines, the first ones stay, and a last line says
/// how many are hidden. Nothing is cut when a size is 0 (unknown). Text is UTF-8; a code point
/// takes one column.
std::vector<std::string> fit_lines(std::vector<std::string> lines, TerminalSize size);

/// Draws each look in the place of the one before. Only one LiveView at a time on a terminal.
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
