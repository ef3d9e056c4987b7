#pragma once

/// @file
/// Parsers for one line of a trace, in two notations: a JSON object, or a row of Azure's CSV. Pure
/// functions for any thread. A parser describes a defect in words and by its column; the caller
/// adds the file and the line.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::trace {

/// A defect within one line. `column` counts bytes from 1.
struct LineDefect {
  std::int64_t column = 0;
  std::string found;
  std::string expected;
};

/// The fields of a JSON record that any of the formats uses. Absent fields keep their defaults.
struct JsonRecord {
  std::optional<std::int64_t> timestamp_us;   ///< "timestamp", milliseconds in the file
  std::optional<std::int64_t> input_tokens;   ///< "input_length"
  std::optional<std::int64_t> output_tokens;  ///< "output_length"
  std::optional<std::int64_t> session;        ///< "session"
  std::optional<std::int64_t> turn;           ///< "turn"
  std::vector<std::int64_t> hash_ids;         ///< "hash_ids"
  bool has_hash_ids = false;                  ///< whether "hash_ids" was present
  bool has_scheduled_ms = false;    ///< whether "scheduled_ms" was present: a record of a real run
  std::optional<std::string> salt;  ///< of the field asked for: its text, or its number as text
};

/// The most bytes of a salt's text.
inline constexpr std::size_t kMaxSaltBytes = 256;

/// Parses one JSON object. Unknown fields are skipped. A known field that occurs twice, a number
/// outside its range, and text behind the object are defects. The column is the column of the
/// field. `salt_field` names the field that is the salt, a whole number or a string; empty: none.
std::optional<LineDefect> parse_json_record(std::string_view line, JsonRecord& record,
                                            std::string_view salt_field = {});

struct CsvRecord {
  std::int64_t wall_us = 0;        ///< TIMESTAMP, microseconds since 1970
  std::int64_t input_tokens = 0;   ///< ContextTokens
  std::int64_t output_tokens = 0;  ///< GeneratedTokens
  std::string salt;                ///< of the column asked for
};

inline constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

/// The columns of a file: those of kAzureHeader, and behind them others.
struct CsvColumns {
  std::size_t others = 0;           ///< behind the three
  std::optional<std::size_t> salt;  ///< of these, the one that is the salt
};

/// Reads a header. Without a salt column it is kAzureHeader; with one, that column and others stand
/// behind it.
std::optional<LineDefect> parse_csv_header(std::string_view line, std::string_view salt_column,
                                           CsvColumns& columns);
/// Parses one row below the header. Text of other columns has no quotes.
std::optional<LineDefect> parse_csv_record(std::string_view line, CsvRecord& record,
                                           const CsvColumns& columns = {});

}  // namespace kvarena::trace
