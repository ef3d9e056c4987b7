#pragma once

/// @file
/// One line of a trace to its fields: the two notations (a JSON object, a row of Azure's CSV). Pure
/// functions of the line; what a defect is called is decided here, where it lies in the file by the
/// caller. Any thread.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::trace {

/// A defect within one line. Column counts bytes from 1.
struct LineDefect {
  std::int64_t column = 0;
  std::string found;
  std::string expected;
};

/// The fields of a JSON record that some format knows. Absent ones keep their defaults.
struct JsonRecord {
  std::optional<std::int64_t> timestamp_us;   ///< "timestamp", milliseconds in the file
  std::optional<std::int64_t> input_tokens;   ///< "input_length"
  std::optional<std::int64_t> output_tokens;  ///< "output_length"
  std::optional<std::int64_t> session;        ///< "session"
  std::optional<std::int64_t> turn;           ///< "turn"
  std::vector<std::int64_t> hash_ids;         ///< "hash_ids"
  bool has_hash_ids = false;                  ///< "hash_ids" was there
  bool has_scheduled_ms = false;              ///< "scheduled_ms" was there: a record of a real run
};

/// Parses one JSON object. Unknown fields are skipped; a known field given twice, a number outside
/// its range and anything behind the object are defects. The column is the field's.
std::optional<LineDefect> parse_json_record(std::string_view line, JsonRecord& record);

/// The fields of a row of Azure's CSV.
struct CsvRecord {
  std::int64_t wall_us = 0;        ///< TIMESTAMP, microseconds since 1970
  std::int64_t input_tokens = 0;   ///< ContextTokens
  std::int64_t output_tokens = 0;  ///< GeneratedTokens
};

inline constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// Parses one row below the header.
std::optional<LineDefect> parse_csv_record(std::string_view line, CsvRecord& record);

}  // namespace kvarena::trace
