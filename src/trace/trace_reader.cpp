#include "trace/trace_reader.hpp"

#include "trace/record_parser.hpp"

#include <fmt/format.h>

#include <array>
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

TraceReader::TraceReader(std::string path, LineSource lines) noexcept
    : path_(std::move(path)), lines_(std::move(lines)) {}

Result<TraceReader> TraceReader::open(const TraceReaderOptions& options, ParseFailure* failure) {
  auto lines = LineSource::open(options.path, options.max_line_bytes);
  if (!lines) {
    const Status status = lines.status();
    if (failure != nullptr) {
      *failure = {
          options.path,
          0,
          0,
          fmt::format("no way to open it ({})", std::generic_category().message(status.native)),
          "a readable trace file",
          "check the path and its permissions"};
    }
    return status;
  }
  TraceReader reader(options.path, std::move(*lines));
  const Status status = reader.settle_format(options.format);
  if (!status) {
    if (failure != nullptr) *failure = reader.failure_;
    return status;
  }
  return reader;
}

Status TraceReader::fail(ParseFailure failure) {
  failure_ = std::move(failure);
  status_ = status_of(failure_);
  return status_;
}

Status TraceReader::fail_line(const Line& line) {
  if (line.outcome == LineOutcome::too_long) {
    return fail({path_, line.number, static_cast<std::int64_t>(lines_.max_line_bytes()) + 1,
                 fmt::format("a line longer than {} bytes", lines_.max_line_bytes()),
                 "one request a line", "check that this is a trace"});
  }
  if (line.outcome == LineOutcome::read_failed) {
    failure_ = {path_,
                line.number + 1,
                0,
                fmt::format("no way to read on ({})", std::generic_category().message(line.native)),
                "the rest of the file",
                ""};
    status_ = {StatusCode::io_error, Resource::file, Option::none, line.native, 0, 0, 0};
    return status_;
  }
  return fail({path_, 0, 0, "no request in the file", "at least one request", ""});
}

// The next line with something in it, or the outcome that ended the search. A byte order mark is
// not content.
Line TraceReader::next_content_line() {
  while (true) {
    Line line = lines_.next();
    line_number_ = line.number;
    if (line.number == 1 && line.text.starts_with(kByteOrderMark)) {
      line.text.remove_prefix(kByteOrderMark.size());
    }
    if (line.outcome != LineOutcome::line || !is_blank(line.text)) return line;
  }
}

Status TraceReader::settle_format(TraceFormat wanted) {
  const Line line = next_content_line();
  if (line.outcome != LineOutcome::line) return fail_line(line);
  const std::string_view text = line.text;
  format_ = wanted;
  if (wanted == TraceFormat::detect) {
    const Status status = detect_format(text);
    if (!status) return status;
  }
  if (format_ == TraceFormat::azure) {
    if (text == kAzureHeader) return {};
    return fail({path_, line.number, 1, excerpt_of(text, 60),
                 fmt::format("the header {}", kAzureHeader), ""});
  }
  first_line_ = text;
  first_line_number_ = line.number;
  first_line_pending_ = true;
  return {};
}

Status TraceReader::detect_format(std::string_view line) {
  constexpr std::string_view kGzipMagic = "\x1f\x8b";
  constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";
  if (line.starts_with(kGzipMagic) || line.starts_with(kZstdMagic)) {
    return fail({path_, line_number_, 1, "compressed data", std::string(kAnyFormat),
                 "decompress the file first"});
  }
  if (line.starts_with("TIMESTAMP")) {
    format_ = TraceFormat::azure;
    return {};
  }
  if (line.front() != '{') {
    return fail({path_, line_number_, 1, excerpt_of(line), std::string(kAnyFormat),
                 "name the format with --format when it is one of these"});
  }
  JsonRecord record;
  format_ = TraceFormat::mooncake;
  if (parse_json_record(line, record)) return {};  // next() reports the defect
  if (record.has_scheduled_ms) format_ = TraceFormat::vllm;
  if (record.session) format_ = TraceFormat::agent;
  return {};
}

Status TraceReader::parse(std::string_view text, TraceRequest& request) {
  const auto refuse = [&](LineDefect defect, std::string advice = "") {
    return fail({path_, line_number_, defect.column, std::move(defect.found),
                 std::move(defect.expected), std::move(advice)});
  };
  if (const auto nul = text.find('\0'); nul != text.npos) {
    return refuse({static_cast<std::int64_t>(nul) + 1, "a NUL byte", "text"},
                  "the file is damaged or not a text file");
  }
  std::int64_t stamp_us = 0;
  if (format_ == TraceFormat::azure) {
    CsvRecord record;
    if (auto defect = parse_csv_record(text, record)) return refuse(std::move(*defect));
    stamp_us = record.wall_us;
    request.input_tokens = record.input_tokens;
    request.output_tokens = record.output_tokens;
  } else {
    JsonRecord record;
    if (auto defect = parse_json_record(text, record)) return refuse(std::move(*defect));
    if (auto defect = missing_field(record, format_, text)) return refuse(std::move(*defect));
    if (auto defect = wrong_id_count(record, format_, text)) return refuse(std::move(*defect));
    stamp_us = *record.timestamp_us;
    request.input_tokens = *record.input_tokens;
    request.output_tokens = *record.output_tokens;
    request.prefix_blocks = std::move(record.hash_ids);
    request.prefix_block_tokens =
        format_ == TraceFormat::mooncake ? kMooncakeBlockTokens : kFullBlockTokens;
    request.session = record.session.value_or(-1);
    request.turn = record.turn.value_or(-1);
  }
  if (num_requests_ == 0) first_us_ = latest_us_ = stamp_us;
  if (stamp_us < latest_us_) {
    return refuse(
        {1, fmt::format("a time stamp {} us before the request above", latest_us_ - stamp_us),
         "requests in order of arrival"},
        "sort the file by time stamp");
  }
  if (stamp_us - first_us_ > kMaxTraceMicroseconds) {
    return refuse({1, fmt::format("a time stamp {} us after the first", stamp_us - first_us_),
                   fmt::format("at most {}", kMaxTraceMicroseconds)});
  }
  latest_us_ = stamp_us;
  request.arrival_us = stamp_us - first_us_;
  request.index = num_requests_++;
  return {};
}

Result<std::optional<TraceRequest>> TraceReader::next() {
  if (!status_) return status_;
  TraceRequest request;
  Status status;
  if (first_line_pending_) {
    first_line_pending_ = false;
    line_number_ = first_line_number_;
    status = parse(first_line_, request);
    first_line_ = {};
  } else {
    const Line line = next_content_line();
    if (line.outcome == LineOutcome::end_of_file && num_requests_ > 0) {
      return std::optional<TraceRequest>{};
    }
    if (line.outcome != LineOutcome::line) return fail_line(line);
    status = parse(line.text, request);
  }
  if (!status) return status;
  return std::optional<TraceRequest>{std::move(request)};
}

}  // namespace kvarena::trace
