#pragma once

/// @file
/// `TraceReader`: the requests of a trace, one at a time, in bounded memory.
/// docs/reference/traces.md has the formats. The first defect ends the reading. Its Finding names
/// the file, the line, the column, the text found and the text expected. Move-only; one thread at a
/// time.

#include "base/finding.hpp"
#include "trace/records.hpp"
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
#include <unordered_map>
#include <vector>

namespace kvarena::trace {

/// The format of a trace. `detect` chooses the format by the first line.
enum class TraceFormat : std::uint8_t { detect, mooncake, azure, agent, vllm };

/// Returns "auto", "mooncake", "azure", "agent" or "vllm".
std::string_view name_of(TraceFormat format) noexcept;
std::vector<std::string> trace_format_names();
/// Returns the format with this name, or nullopt.
std::optional<TraceFormat> trace_format_of(std::string_view name) noexcept;

struct TraceReaderOptions {
  std::string path;                          ///< a file, plain, gzip or zstd; "-": standard input
  TraceFormat format = TraceFormat::detect;  ///< the required format, or `detect`
  std::size_t max_line_bytes = 8 << 20;      ///< longer lines are refused
  const std::atomic<bool>* stop = nullptr;   ///< the trace ends once it is true; may be null
  std::string salt_column{};  ///< the JSON field or CSV column that is the salt; empty: no salts

  bool is_stopped() const noexcept { return stop != nullptr && *stop; }
};

/// The most different salts of a trace.
inline constexpr std::size_t kMaxSalts = std::size_t{1} << 20;

/// Reads a trace from its first request to its last.
class TraceReader {
 public:
  /// Opens the file and decides its format. Returns io_error (file) with errno, or parse_error
  /// (file). `*failure` (may be null) then says in words what is wrong.
  static Result<TraceReader> open(const TraceReaderOptions& options, Finding* failure);

  /// Returns the next request, or nullopt after the last. Returns parse_error (file) or io_error
  /// (file); failure() then says in words what is wrong, and every later call returns the same. A
  /// trace without requests is a parse_error too.
  Result<std::optional<TraceRequest>> next();

  /// Returns the defect that ended the reading, or an empty Finding.
  const Finding& failure() const noexcept { return failure_; }
  /// Returns the format; it is never `detect`.
  TraceFormat format() const noexcept { return format_; }
  /// Returns the different salts so far.
  std::int64_t num_salts() const noexcept { return std::ssize(salts_); }
  /// Returns whether the trace can be read again from its start. A pipe cannot.
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
  Status parse_json(TraceRequest& request, std::int64_t& stamp_us);
  Status take_salt(const std::optional<std::string>& text, TraceRequest& request);

  TraceReaderOptions options_;
  std::unique_ptr<TraceInput> input_;
  std::unique_ptr<std::istream> stream_;  // over input_
  std::unique_ptr<char[]> buffer_;        // a line
  TraceFormat format_ = TraceFormat::detect;
  std::string_view line_;         // the line read last, without its end
  std::int64_t line_number_ = 0;  // number of that line; 0: the whole trace
  bool too_long_ = false;         // what comes next
  bool line_pending_ = false;     // the line that decided the format is not parsed yet
  CsvColumns columns_;            // of a CSV
  std::unordered_map<std::string, std::uint64_t> salts_;  // the number of each text
  std::int64_t num_requests_ = 0;
  std::int64_t first_us_ = 0;  // absolute time stamps of the first and latest request
  std::int64_t latest_us_ = 0;
  Status status_;
  Finding failure_;
};

}  // namespace kvarena::trace
