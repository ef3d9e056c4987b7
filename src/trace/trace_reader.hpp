#pragma once

/// @file
/// `TraceReader`: the requests of a trace file, one at a time, in bounded memory.
/// docs/reference/traces.md has the formats. A malformed line ends the reading with parse_error and
/// a ParseFailure that names file, line, column, what was found and what was expected. Move-only;
/// one thread at a time.

#include "trace/line_source.hpp"
#include "trace/parse_failure.hpp"
#include "trace/trace_request.hpp"

#include "kvarena/base/result.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::trace {

/// Which trace format a file has. `detect` looks at the first line.
enum class TraceFormat : std::uint8_t { detect, mooncake, azure, agent, vllm };

/// "auto", "mooncake", "azure", "agent", "vllm".
std::string_view name_of(TraceFormat format) noexcept;
/// All of these names.
std::vector<std::string> trace_format_names();
/// The format of that name, or nothing.
std::optional<TraceFormat> trace_format_of(std::string_view name) noexcept;

/// What to read and how.
struct TraceReaderOptions {
  std::string path;                                               ///< a file
  TraceFormat format = TraceFormat::detect;                       ///< or which one it must be
  std::size_t max_line_bytes = LineSource::kDefaultMaxLineBytes;  ///< longer lines are refused
};

/// Reads a trace from its first request to its last.
class TraceReader {
 public:
  /// Opens the file and settles its format. Returns io_error (file) with errno, or parse_error
  /// (file);
  /// `*failure` then says in words what is wrong.
  static Result<TraceReader> open(const TraceReaderOptions& options, ParseFailure* failure);

  /// The next request, or nothing after the last. Returns parse_error (file) or io_error (file),
  /// and failure() says in words what is wrong; every later call returns the same. A file without
  /// any request is a parse_error too.
  Result<std::optional<TraceRequest>> next();

  /// The defect that ended the reading; empty strings when there is none.
  const ParseFailure& failure() const noexcept { return failure_; }
  /// The format, never `detect`.
  TraceFormat format() const noexcept { return format_; }
  /// Bytes consumed so far, for progress.
  std::int64_t bytes_consumed() const noexcept { return lines_.bytes_consumed(); }
  /// Bytes of the file, or -1 when unknown.
  std::int64_t bytes_total() const noexcept { return lines_.bytes_total(); }
  /// Whether the file can be read again from the start (a pipe cannot).
  bool is_rereadable() const noexcept { return lines_.bytes_total() >= 0; }

 private:
  TraceReader(std::string path, LineSource lines) noexcept;
  Status settle_format(TraceFormat wanted);
  Status detect_format(std::string_view line);
  Line next_content_line();
  Status fail_line(const Line& line);
  Status fail(ParseFailure failure);
  Status parse(std::string_view text, TraceRequest& request);

  std::string path_;
  LineSource lines_;
  TraceFormat format_ = TraceFormat::detect;
  std::string first_line_;  // the line that settled the format, still to be parsed
  std::int64_t first_line_number_ = 0;
  bool first_line_pending_ = false;
  std::int64_t line_number_ = 0;
  std::int64_t num_requests_ = 0;
  std::int64_t first_us_ = 0;  // absolute time stamps of the first and latest request
  std::int64_t latest_us_ = 0;
  Status status_;
  ParseFailure failure_;
};

}  // namespace kvarena::trace
