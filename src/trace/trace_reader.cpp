#include "trace/trace_reader.hpp"

#include "base/excerpt.hpp"
#include "trace/records.hpp"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace kvarena::trace {
namespace {

constexpr std::array<std::pair<TraceFormat, std::string_view>, 5> kFormatNames{{
    {TraceFormat::detect, "auto"},
    {TraceFormat::mooncake, "mooncake"},
    {TraceFormat::azure, "azure"},
    {TraceFormat::agent, "agent"},
    {TraceFormat::vllm, "vllm"},
}};

constexpr std::int32_t kMooncakeBlockTokens = 512;
constexpr std::int32_t kFullBlockTokens = 16;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr std::string_view kAnyFormat =
    "a JSON object (mooncake, agent, vllm) or the header TIMESTAMP,ContextTokens,GeneratedTokens";

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r") == text.npos; }

std::string shown_path(const std::string& path) {
  return path == "-" ? "standard input" : printable(path);
}

std::optional<LineDefect> missing_field(const JsonRecord& record, TraceFormat format,
                                        std::string_view line) {
  const bool session = format == TraceFormat::agent;
  std::string_view missing;
  if (!record.timestamp_us)
    missing = "timestamp";
  else if (!record.input_tokens)
    missing = "input_length";
  else if (!record.output_tokens)
    missing = "output_length";
  else if (!record.has_hash_ids)
    missing = "hash_ids";
  else if (session && !record.session)
    missing = "session";
  else if (session && !record.turn)
    missing = "turn";
  else
    return std::nullopt;
  return LineDefect{static_cast<std::int64_t>(line.size()), "the end of the object",
                    fmt::format("the field \"{}\" ({} trace)", missing, name_of(format))};
}

// How many ids a prompt of that length must have.
std::optional<LineDefect> wrong_id_count(const JsonRecord& record, TraceFormat format,
                                         std::string_view line) {
  const std::int64_t tokens = *record.input_tokens;
  const bool partial = format == TraceFormat::mooncake;
  const std::int64_t block = partial ? kMooncakeBlockTokens : kFullBlockTokens;
  const std::int64_t wanted = partial ? (tokens + block - 1) / block : tokens / block;
  const auto given = static_cast<std::int64_t>(record.hash_ids.size());
  if (given == wanted) return std::nullopt;
  const auto at = line.find("\"hash_ids\"");
  return LineDefect{
      static_cast<std::int64_t>(at == line.npos ? 0 : at) + 1,
      fmt::format("{} ids in \"hash_ids\"", given),
      fmt::format("{}: one for each {}block of {} tokens of a prompt of {} ({} trace)", wanted,
                  partial ? "started " : "full ", block, tokens, name_of(format))};
}

}  // namespace

std::string_view name_of(TraceFormat format) noexcept {
  for (const auto& [value, name] : kFormatNames) {
    if (value == format) return name;
  }
  return "unknown";
}

std::vector<std::string> trace_format_names() {
  std::vector<std::string> names;
  for (const auto& [_, name] : kFormatNames) names.emplace_back(name);
  return names;
}

std::optional<TraceFormat> trace_format_of(std::string_view name) noexcept {
  for (const auto& [value, known] : kFormatNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

TraceReader::TraceReader(const TraceReaderOptions& options)
    : options_(options),
      input_(std::make_unique<TraceInput>(options.path, options.stop)),
      stream_(std::make_unique<std::istream>(input_.get())),
      // One past the longest, for its CR, and one for the end of the string.
      buffer_(std::make_unique_for_overwrite<char[]>(options.max_line_bytes + 2)),
      format_(options.format) {}

Result<TraceReader> TraceReader::open(const TraceReaderOptions& options, Finding* failure) {
  TraceReader reader(options);
  const int error = reader.input_->error();
  const Status status =
      error != 0 ? reader.fail_io(error, "no way to open it") : reader.settle_format();
  if (status) return reader;
  if (failure != nullptr) *failure = reader.failure_;
  return status;
}

Status TraceReader::fail_io(int error, std::string found) {
  failure_ = {
      shown_path(options_.path),
      fmt::format("{} ({})", found, std::generic_category().message(error)), "a readable trace",
      error == ENOMEM ? "give the process more memory" : "check the path and its permissions"};
  return status_ = {StatusCode::io_error, Resource::file, Option::none, error, 0, 0, 0};
}

Status TraceReader::fail(std::int64_t column, std::string found, std::string expected,
                         std::string advice) {
  std::string place = shown_path(options_.path);
  if (line_number_ > 0) place += fmt::format(":{}", line_number_);
  if (column > 0) place += fmt::format(":{}", column);
  if (advice.empty()) advice = "correct the trace; docs/reference/traces.md describes the formats";
  failure_ = {std::move(place), std::move(found), std::move(expected), std::move(advice)};
  return status_ = {StatusCode::parse_error,
                    Resource::file,
                    Option::none,
                    0,
                    static_cast<std::uint64_t>(line_number_),
                    static_cast<std::uint64_t>(column),
                    0};
}

// Reads a line. False where there is none: at the end, past an unreadable byte, or longer than the
// limit.
bool TraceReader::next_line() {
  const std::size_t most = options_.max_line_bytes + 2;
  stream_->getline(buffer_.get(), static_cast<std::streamsize>(most));
  auto length = static_cast<std::size_t>(stream_->gcount());
  too_long_ = stream_->fail() && length == most - 1;
  if (stream_->fail()) return false;
  if (!stream_->eof()) {
    --length;  // the line feed
  } else if (input_->end() != TraceInput::End::complete) {
    return false;
  }
  ++line_number_;
  line_ = {buffer_.get(), length};
  if (line_.ends_with('\r')) line_.remove_suffix(1);
  if (line_number_ == 1 && line_.starts_with(kByteOrderMark)) {
    line_.remove_prefix(kByteOrderMark.size());
  }
  too_long_ = line_.size() > options_.max_line_bytes;
  if (too_long_) --line_number_;
  return !too_long_;
}

bool TraceReader::next_content_line() {
  while (!options_.is_stopped() && next_line()) {
    if (!is_blank(line_)) return true;
  }
  return false;
}

// Why there is no line.
Status TraceReader::fail_without_line() {
  using enum TraceInput::End;
  const TraceInput::End end = too_long_ ? none : input_->end();
  if (end == read_failed) return fail_io(input_->error(), "no way to read on");
  if (end == large_window) {
    ++line_number_;
    return fail(0, fmt::format("zstd data with a window above {} MiB", kMaxWindowBytes >> 20),
                "a smaller window", "decompress the trace first: zstd -d --long=31");
  }
  if (end == truncated || end == corrupt) {
    ++line_number_;
    return fail(0,
                end == corrupt ? "compressed data that is damaged"
                               : "compressed data that ends in its middle",
                "the rest of the trace", "make or copy the file again");
  }
  if (too_long_) {
    ++line_number_;
    return fail(static_cast<std::int64_t>(options_.max_line_bytes) + 1,
                fmt::format("a line longer than {} bytes", options_.max_line_bytes),
                "one request a line", "check that this is a trace");
  }
  line_number_ = 0;
  return fail(0, "no request", "at least one");
}

Status TraceReader::settle_format() {
  if (!next_content_line()) return fail_without_line();
  if (format_ == TraceFormat::detect) {
    if (Status status = detect_format(); !status) return status;
  }
  line_pending_ = format_ != TraceFormat::azure;
  if (line_pending_) return {};
  auto defect = parse_csv_header(line_, options_.salt_column, columns_);
  if (!defect) return {};
  return fail(defect->column, std::move(defect->found), std::move(defect->expected));
}

Status TraceReader::detect_format() {
  if (line_.starts_with("TIMESTAMP")) {
    format_ = TraceFormat::azure;
    return {};
  }
  if (line_.front() != '{') return fail(1, excerpt_of(line_), std::string(kAnyFormat));
  JsonRecord record;
  format_ = TraceFormat::mooncake;
  if (parse_json_record(line_, record)) return {};  // next() reports the defect
  if (record.has_scheduled_ms) format_ = TraceFormat::vllm;
  if (record.session) format_ = TraceFormat::agent;
  return {};
}

// Numbers a salt by its first occurrence, so that every reading gives the same numbers.
Status TraceReader::take_salt(const std::optional<std::string>& text, TraceRequest& request) {
  if (options_.salt_column.empty()) return {};
  if (!text) {
    return fail(std::ssize(line_), "the end of the object",
                fmt::format("the field {}, which is the salt", excerpt_of(options_.salt_column)));
  }
  const auto [place, is_new] = salts_.try_emplace(*text, salts_.size() + 1);
  if (is_new && salts_.size() > kMaxSalts) {
    return fail(1, fmt::format("more than {} different salts", kMaxSalts),
                "a column with fewer values", "choose another column");
  }
  request.salt = place->second;
  return {};
}

Status TraceReader::parse_record(TraceRequest& request, std::int64_t& stamp_us) {
  if (format_ != TraceFormat::azure) return parse_json(request, stamp_us);
  CsvRecord record;
  if (auto defect = parse_csv_record(line_, record, columns_)) {
    return fail(defect->column, std::move(defect->found), std::move(defect->expected));
  }
  stamp_us = record.wall_us;
  request.input_tokens = record.input_tokens;
  request.output_tokens = record.output_tokens;
  return take_salt(record.salt, request);
}

Status TraceReader::parse_json(TraceRequest& request, std::int64_t& stamp_us) {
  const auto refuse = [&](LineDefect defect) {
    return fail(defect.column, std::move(defect.found), std::move(defect.expected));
  };
  JsonRecord record;
  if (auto defect = parse_json_record(line_, record, options_.salt_column)) {
    return refuse(std::move(*defect));
  }
  if (auto defect = missing_field(record, format_, line_)) return refuse(std::move(*defect));
  if (auto defect = wrong_id_count(record, format_, line_)) return refuse(std::move(*defect));
  stamp_us = *record.timestamp_us;
  request.input_tokens = *record.input_tokens;
  request.output_tokens = *record.output_tokens;
  request.prefix_blocks = std::move(record.hash_ids);
  request.prefix_block_tokens =
      format_ == TraceFormat::mooncake ? kMooncakeBlockTokens : kFullBlockTokens;
  request.session = record.session.value_or(-1);
  request.turn = record.turn.value_or(-1);
  return take_salt(record.salt, request);
}

Status TraceReader::parse(TraceRequest& request) {
  if (const auto nul = line_.find('\0'); nul != line_.npos) {
    return fail(static_cast<std::int64_t>(nul) + 1, "a NUL byte", "text",
                "the file is damaged or not a text file");
  }
  std::int64_t stamp_us = 0;
  if (Status status = parse_record(request, stamp_us); !status) return status;
  if (num_requests_ == 0) first_us_ = latest_us_ = stamp_us;
  if (stamp_us < latest_us_) {
    return fail(1,
                fmt::format("a time stamp {} us before the request above", latest_us_ - stamp_us),
                "requests in order of arrival", "sort the file by time stamp");
  }
  if (stamp_us - first_us_ > kMaxTraceMicroseconds) {
    return fail(1, fmt::format("a time stamp {} us after the first", stamp_us - first_us_),
                fmt::format("at most {}", kMaxTraceMicroseconds));
  }
  latest_us_ = stamp_us;
  request.arrival_us = stamp_us - first_us_;
  request.index = num_requests_++;
  return {};
}

Result<std::optional<TraceRequest>> TraceReader::next() {
  if (!status_) return status_;
  const bool has_line = std::exchange(line_pending_, false) || next_content_line();
  if (options_.is_stopped()) return std::optional<TraceRequest>{};
  if (!has_line) {
    const bool ended = !too_long_ && input_->end() == TraceInput::End::complete;
    if (ended && num_requests_ > 0) return std::optional<TraceRequest>{};
    return fail_without_line();
  }
  TraceRequest request;
  if (Status status = parse(request); !status) return status;
  return std::optional<TraceRequest>{std::move(request)};
}

}  // namespace kvarena::trace
