#pragma once

/// @file
/// `LineFields`: a line for logs, of a word and then key=value pairs, as logfmt has them.

#include <cstdint>
#include <string>
#include <string_view>

namespace kvarena::tools {

/// Builds one line. Text has to be printable already.
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
