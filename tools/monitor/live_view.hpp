#pragma once

/// @file
/// `LiveView`: a few lines on a terminal, redrawn in their place. What was on the terminal before
/// stays, and the last lines stay when the program ends.

#include "tools/console.hpp"

#include <string>
#include <vector>

namespace kvarena::tools {

/// `lines` as a terminal of that size holds them above the cursor's line: cut to its columns, and
/// of more lines than its rows less one the first, with a last line that says how many are hidden.
/// Nothing is cut where a size is 0 (unknown). Text is UTF-8, a column a code point.
std::vector<std::string> fit_lines(std::vector<std::string> lines, TerminalSize size);

/// Draws looks over each other. One at a time on a terminal.
class LiveView {
 public:
  /// Draws on `out`, which is one of the console's.
  LiveView(const Console& console, std::ostream& out) : console_(console), out_(out) {}

  /// Draws `lines` in the place of those before; the first is the title, green or red.
  void draw(const std::vector<std::string>& lines, bool good);

 private:
  const Console& console_;
  std::ostream& out_;
  TerminalSize size_;
  std::size_t drawn_lines_ = 0;
};

}  // namespace kvarena::tools
