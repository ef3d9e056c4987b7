#pragma once

/// @file
/// `LineSource`: the lines of a file, one at a time, in bounded memory: a line longer than the
/// limit is an outcome, not an allocation. Owns its descriptor; move-only; one thread at a time.

#include "kvarena/base/result.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::trace {

/// What LineSource::next came back with.
enum class LineOutcome : std::uint8_t { line, end_of_file, too_long, read_failed };

/// One line of a file. The text is valid until the next call.
struct Line {
  LineOutcome outcome = LineOutcome::end_of_file;
  std::string_view text;    ///< without LF and without a CR before it
  std::int64_t number = 0;  ///< from 1
  std::int32_t native = 0;  ///< errno, for read_failed
};

/// A file's lines in order. A last line without LF counts as a line.
class LineSource {
 public:
  static constexpr std::size_t kDefaultMaxLineBytes = std::size_t{8} << 20;

  /// Returns io_error (file) with errno when the file cannot be opened or is a directory.
  static Result<LineSource> open(const std::string& path,
                                 std::size_t max_line_bytes = kDefaultMaxLineBytes);
  ~LineSource();
  LineSource(LineSource&& other) noexcept;
  LineSource& operator=(LineSource&& other) noexcept;

  /// The next line. After anything but `line` the source is spent and repeats its answer.
  Line next();

  /// Bytes of the file consumed so far.
  std::int64_t bytes_consumed() const noexcept { return consumed_; }
  /// Bytes of the file, or -1 when it has no size (a pipe).
  std::int64_t bytes_total() const noexcept { return total_; }
  /// The longest line accepted, bytes.
  std::size_t max_line_bytes() const noexcept { return max_line_bytes_; }

 private:
  LineSource(int descriptor, std::int64_t total, std::size_t max_line_bytes);
  bool fill();

  int descriptor_ = -1;
  std::int64_t total_ = -1;
  std::size_t max_line_bytes_ = 0;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;  // first unconsumed byte of buffer_
  std::size_t end_ = 0;    // one past the last byte read
  bool at_end_ = false;
  std::int32_t native_ = 0;
  std::int64_t consumed_ = 0;
  std::int64_t number_ = 0;
  LineOutcome spent_ = LineOutcome::line;
};

}  // namespace kvarena::trace
