#include "base/excerpt.hpp"
#include "trace/records.hpp"
#include "trace/trace_request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace kvarena::trace {
namespace {

constexpr std::string_view kTimestampForm = "a time stamp like 2023-11-16 18:15:46.6805900";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Walks a row from left to right; `at` is the next byte.
struct Cursor {
  std::string_view line;
  std::size_t at = 0;

  LineDefect defect(std::size_t column, std::string_view expected) const {
    std::size_t end = line.find(',', column);
    if (end == line.npos) end = line.size();
    std::string found = column >= line.size() ? "the end of the line"
                                              : excerpt_of(line.substr(column, end - column));
    return {static_cast<std::int64_t>(column) + 1, std::move(found), std::string(expected)};
  }
  bool skip(char c) {
    if (at >= line.size() || line[at] != c) return false;
    ++at;
    return true;
  }
  // Exactly `count` digits.
  std::optional<int> digits(int count) {
    int value = 0;
    for (int i = 0; i < count; ++i, ++at) {
      if (at >= line.size() || !is_digit(line[at])) return std::nullopt;
      value = value * 10 + (line[at] - '0');
    }
    return value;
  }
};

// Up to nine digits behind the point, in nanoseconds; none at all is 0.
std::optional<std::int64_t> fraction_ns(Cursor& cursor) {
  if (!cursor.skip('.')) return 0;
  std::int64_t ns = 0;
  std::int64_t unit = 100'000'000;
  const std::size_t first = cursor.at;
  for (; cursor.at < cursor.line.size() && is_digit(cursor.line[cursor.at]); ++cursor.at) {
    if (unit == 0) return std::nullopt;
    ns += (cursor.line[cursor.at] - '0') * unit;
    unit /= 10;
  }
  if (cursor.at == first) return std::nullopt;
  return ns;
}

// Microseconds since 1970, rounded down; nothing when it is not a date and time.
std::optional<std::int64_t> wall_clock_us(Cursor& cursor) {
  namespace ch = std::chrono;
  const auto year = cursor.digits(4);
  const bool dash1 = cursor.skip('-');
  const auto month = cursor.digits(2);
  const bool dash2 = cursor.skip('-');
  const auto day = cursor.digits(2);
  const bool gap = cursor.skip(' ') || cursor.skip('T');
  const auto hour = cursor.digits(2);
  const bool colon1 = cursor.skip(':');
  const auto minute = cursor.digits(2);
  const bool colon2 = cursor.skip(':');
  const auto second = cursor.digits(2);
  if (!year || !month || !day || !hour || !minute || !second) return std::nullopt;
  if (!dash1 || !dash2 || !gap || !colon1 || !colon2) return std::nullopt;
  const auto fraction = fraction_ns(cursor);
  if (!fraction) return std::nullopt;
  if (cursor.line.substr(cursor.at).starts_with("+00:00")) cursor.at += 6;
  const ch::year_month_day date{ch::year{*year}, ch::month{static_cast<unsigned>(*month)},
                                ch::day{static_cast<unsigned>(*day)}};
  if (!date.ok() || *hour > 23 || *minute > 59 || *second > 59) return std::nullopt;
  const std::int64_t days = ch::sys_days{date}.time_since_epoch().count();
  const std::int64_t seconds = ((days * 24 + *hour) * 60 + *minute) * 60 + *second;
  return seconds * 1'000'000 + *fraction / 1000;
}

std::optional<LineDefect> token_count(Cursor& cursor, std::string_view name, std::int64_t smallest,
                                      std::int64_t largest, std::int64_t& value) {
  const std::string expected = fmt::format("{}: a whole number {} .. {}", name, smallest, largest);
  const std::size_t first = cursor.at;
  value = 0;
  for (; cursor.at < cursor.line.size() && cursor.line[cursor.at] != ','; ++cursor.at) {
    const char c = cursor.line[cursor.at];
    if (!is_digit(c)) return cursor.defect(first, expected);
    value = value * 10 + (c - '0');
    if (value > largest) return cursor.defect(first, expected);
  }
  if (cursor.at == first || value < smallest) return cursor.defect(first, expected);
  return std::nullopt;
}

// The columns behind the three, of which one may be the salt.
std::optional<LineDefect> other_columns(Cursor& cursor, const CsvColumns& columns,
                                        std::string& salt) {
  for (std::size_t i = 0; i < columns.others; ++i) {
    if (!cursor.skip(',')) {
      return cursor.defect(cursor.at, fmt::format("a comma and {} more columns, as in the header",
                                                  columns.others - i));
    }
    const std::size_t first = cursor.at;
    cursor.at = std::min(cursor.line.find(',', first), cursor.line.size());
    const std::string_view text = cursor.line.substr(first, cursor.at - first);
    if (columns.salt != i) continue;
    if (text.empty() || text.size() > kMaxSaltBytes || text.find('"') != text.npos) {
      return cursor.defect(first,
                           fmt::format("a salt: 1 .. {} bytes without quotes", kMaxSaltBytes));
    }
    salt = text;
  }
  return std::nullopt;
}

}  // namespace

std::optional<LineDefect> parse_csv_header(std::string_view line, std::string_view salt_column,
                                           CsvColumns& columns) {
  columns = CsvColumns{};
  if (salt_column.empty()) {
    if (line == kAzureHeader) return std::nullopt;
    return LineDefect{1, excerpt_of(line, 60), fmt::format("the header {}", kAzureHeader)};
  }
  std::string_view rest = line;
  if (rest.starts_with(kAzureHeader)) rest.remove_prefix(kAzureHeader.size());
  while (rest.starts_with(',')) {
    rest.remove_prefix(1);
    const std::string_view name = rest.substr(0, rest.find(','));
    if (name == salt_column && !columns.salt) columns.salt = columns.others;
    ++columns.others;
    rest.remove_prefix(name.size());
  }
  if (rest.empty() && columns.salt) return std::nullopt;
  return LineDefect{1, excerpt_of(line, 60),
                    fmt::format("the header {}, and behind it the column {}", kAzureHeader,
                                excerpt_of(salt_column))};
}

std::optional<LineDefect> parse_csv_record(std::string_view line, CsvRecord& record,
                                           const CsvColumns& columns) {
  record = CsvRecord{};
  Cursor cursor{line};
  const auto wall = wall_clock_us(cursor);
  if (!wall) return cursor.defect(0, kTimestampForm);
  record.wall_us = *wall;
  if (!cursor.skip(',')) return cursor.defect(cursor.at, "a comma behind the time stamp");
  if (auto defect = token_count(cursor, "ContextTokens", 1, kMaxInputTokens, record.input_tokens))
    return defect;
  if (!cursor.skip(',')) return cursor.defect(cursor.at, "a comma and GeneratedTokens");
  if (auto defect =
          token_count(cursor, "GeneratedTokens", 0, kMaxOutputTokens, record.output_tokens))
    return defect;
  if (auto defect = other_columns(cursor, columns, record.salt)) return defect;
  if (cursor.at != line.size()) {
    return cursor.defect(cursor.at,
                         fmt::format("the end of the line: {} columns", 3 + columns.others));
  }
  return std::nullopt;
}

}  // namespace kvarena::trace
