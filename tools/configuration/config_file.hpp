#pragma once

/// @file
/// Reads kvarena.toml as a list of settings with their lines, and writes strings as TOML. The
/// accepted part of TOML is tables, and keys with a string, a number, a boolean or an array of
/// these on one or more lines. A wrong file gives one `ConfigError`. The functions know no commands
/// or options. Pure functions.

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

/// The largest file in bytes, about twenty times the size of all options.
inline constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 18;

/// Says why a configuration cannot be used. It is thrown while the command line is parsed, like
/// CLI11's errors. run_command_line reports it.
struct ConfigError : std::exception {
  ConfigError(ExitCode error_code, Finding why) : code(error_code), finding(std::move(why)) {}

  ExitCode code;  ///< bad_input for a file, usage for a variable
  Finding finding;
};

/// "key = value" of a table.
struct ConfigEntry {
  std::string table;                ///< "bench.attention"; empty: before the first table
  std::string key;                  ///< empty: the line of the table itself
  std::vector<std::string> values;  ///< as on a command line; one for each element of an array
  std::uint32_t line = 0;           ///< from 1
};

/// Returns the entries of a file. Errors name it `path`. Throws ConfigError (bad_input).
std::vector<ConfigEntry> parse_config(std::istream& text, const std::string& path);

/// `text` as a TOML string in double quotes, on one line, control characters escaped; what is not
/// UTF-8 becomes U+FFFD.
std::string toml_quoted(std::string_view text);

}  // namespace kvarena::tools
