#pragma once

/// @file
/// `TraceReader`: the requests of a trace, one at a time, in bounded memory.
/// docs/reference/traces.md has the formats. The first defect ends the reading with a Finding that
/// names file, line, column, what was found and what was expected. Move-only; one thread at a time.

#include "base/finding.hpp"
#include "trace/trace_input.hpp"
#include "trace/trace_request.hpp"

#include "kvarena/base/result.hpp"

#include <atomic>
#include <cstdint>
#include <istream>
#include <memory>
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
  std::string path;                          ///< a file, plain, gzip or zstd; "-": standard input
  TraceFormat format = TraceFormat::detect;  ///< or which one it must be
  std::size_t max_line_bytes = 8 << 20;      ///< longer lines are refused
  const std::atomic<bool>* stop = nullptr;   ///< true: the trace ends here. May be null

  bool is_stopped() const noexcept { return stop != nullptr && *stop; }
};

/// Reads a trace from its first request to its last.
class TraceReader {
 public:
  /// Opens the file and settles its format. Returns io_error (file) with errno, or parse_error
  /// (file); `*failure` (may be null) then says in words what is wrong.
  static Result<TraceReader> open(const TraceReaderOptions& options, Finding* failure);

  /// The next request, or nothing after the last. Returns parse_error (file) or io_error (file),
  /// and failure() says in words what is wrong; every later call returns the same. A trace without
  /// any request is a parse_error too.
  Result<std::optional<TraceRequest>> next();

  /// The defect that ended the reading; empty when there is none.
  const Finding& failure() const noexcept { return failure_; }
  /// The format, never `detect`.
  TraceFormat format() const noexcept { return format_; }
  /// Whether the trace can be read again from its start (a pipe cannot).
  bool is_rereadable() const noexcept { return input_->is_file(); }

 private:
  explicit TraceReader(const TraceReaderOptions& options);
  Status settle_format();
  Status detect_format();
  bool next_line();
  bool next_content_line();
  Status fail_without_line();
  Status fail_io(int error, std::string found);
  Status fail(std::int64_t column, std::string found, std::string expected,
              std::string advice = {});
  Status parse(TraceRequest& request);
  Status parse_record(TraceRequest& request, std::int64_t& stamp_us);

  TraceReaderOptions options_;
  std::unique_ptr<TraceInput> input_;
  std::unique_ptr<std::istream> stream_;  // over input_
  std::unique_ptr<char[]> buffer_;        // a line
  TraceFormat format_ = TraceFormat::detect;
  std::string_view line_;         // the one read last, without its end
  std::int64_t line_number_ = 0;  // of it; 0: the trace as a whole is meant
  bool too_long_ = false;         // what comes next
  bool line_pending_ = false;     // it settled the format and is still to be parsed
  std::int64_t num_requests_ = 0;
  std::int64_t first_us_ = 0;  // absolute time stamps of the first and latest request
  std::int64_t latest_us_ = 0;
  Status status_;
  Finding failure_;
};

}  // namespace kvarena::trace
