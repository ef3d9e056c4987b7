#include "tools/monitor/monitor_frame.hpp"

#include "tools/option_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace kvarena::tools {

namespace {

// A character may be two columns wide: what fit_lines leaves too long must not wrap.
constexpr std::string_view kCrop = "\x1b[?7l";
constexpr std::string_view kWrap = "\x1b[?7h";
constexpr std::string_view kEraseBelow = "\x1b[J";
constexpr std::string_view kTop = "\x1b[H";

void cut(std::string& line, std::size_t columns) {
  std::size_t characters = 0;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(line[at]) & 0xc0) != 0x80;
    if (begins && ++characters > columns) return line.resize(at);
  }
}

}  // namespace

void LineFields::append(std::string_view value) {
  if (!value.empty() && value.find_first_of(" =\"") == value.npos) {
    text_ += value;
    return;
  }
  std::string quoted(value);
  std::replace(quoted.begin(), quoted.end(), '"', '\'');
  text_ += '"' + quoted + '"';
}

void LineFields::add(std::string_view key, std::string_view value) {
  text_ += ' ';
  append(key);
  text_ += '=';
  append(value);
}

void LineFields::add_bytes(std::string_view key, std::int64_t bytes) {
  std::string amount = human_bytes(bytes);
  std::erase(amount, ' ');
  add(key, amount);
}

std::vector<std::string> fit_lines(std::vector<std::string> lines, TerminalSize size) {
  // The cursor's line stays free; of a terminal of one or two rows there is only the title.
  const auto room = static_cast<std::size_t>(std::max(size.rows - 1, 1));
  if (size.rows > 0 && lines.size() > room) {
    const std::size_t shown = std::max<std::size_t>(room - 1, 1);
    const std::size_t hidden = lines.size() - shown;
    lines.resize(shown);
    if (shown < room) lines.push_back(fmt::format("  ... {} more lines", hidden));
  }
  if (size.columns > 0) {
    for (std::string& line : lines) cut(line, static_cast<std::size_t>(size.columns));
  }
  return lines;
}

void LiveView::draw(const std::vector<std::string>& lines, bool good) {
  const TerminalSize size = console_.terminal_size ? console_.terminal_size() : TerminalSize{};
  const std::vector<std::string> shown = fit_lines(lines, size);
  // After a change of size the terminal may have wrapped or lost lines: nobody knows where they
  // are.
  if (drawn_lines_ > 0 && size != size_) {
    out_ << kTop << kEraseBelow;
  } else if (drawn_lines_ > 0) {
    out_ << fmt::format("\x1b[{}A", drawn_lines_) << kEraseBelow;
  }
  out_ << kCrop;
  for (std::size_t n = 0; n < shown.size(); ++n) {
    if (n == 0) out_ << (good ? console_.green(out_) : console_.red(out_));
    out_ << shown[n] << (n == 0 ? console_.plain(out_) : "") << '\n';
  }
  out_ << kWrap << std::flush;
  drawn_lines_ = shown.size();
  size_ = size;
}

}  // namespace kvarena::tools
