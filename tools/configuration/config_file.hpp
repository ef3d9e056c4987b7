#pragma once

/// @file
/// kvarena.toml as a list of settings with their lines, and strings as TOML writes them. Of TOML
/// this is what settings need: tables, and keys with a string, a number, a boolean or an array of
/// these on one or more lines. The file is input from outside: what is wrong with it is one
/// `ConfigError`. Knows nothing of commands and options. Pure functions.

#include "tools/exit_codes.hpp"

#include "base/finding.hpp"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <istream>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {

/// Largest file, bytes: some twenty times what all options take.
inline constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 18;

/// Why a configuration cannot be used. Thrown while the command line is parsed, as CLI11's errors
/// are; run_command_line reports it.
struct ConfigError : std::exception {
  ConfigError(ExitCode error_code, Finding why) : code(error_code), finding(std::move(why)) {}

  ExitCode code;  ///< bad_input for a file, usage for a variable
  Finding finding;
};

/// "key = value" of a table.
struct ConfigEntry {
  std::string table;                ///< "bench.attention"; empty: before the first table
  std::string key;                  ///< empty: the line of the table itself
  std::vector<std::string> values;  ///< as a command line has them; of an array one each
  std::uint32_t line = 0;           ///< from 1
};

/// The entries of a file that is called `path` in errors. Throws ConfigError (bad_input).
std::vector<ConfigEntry> parse_config(std::istream& text, const std::string& path);

/// `text` as a TOML string in double quotes, on one line, control characters escaped; what is not
/// UTF-8 becomes U+FFFD.
std::string toml_quoted(std::string_view text);

}  // namespace kvarena::tools
