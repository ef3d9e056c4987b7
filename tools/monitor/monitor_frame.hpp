#pragma once

/// @file
/// `MonitorFrame`: one look of `kvarena monitor`, ready to be shown; `MonitorSource` makes them,
/// with `LineFields` for the lines of logs.

#include <nlohmann/json.hpp>

#include <cstdint>
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

}  // namespace kvarena::tools
