#pragma once

/// @file
/// kvarena.toml as a list of entries with their places, and strings as TOML writes them. The file
/// is input from outside: what is not TOML, or too large or too deep, is one `ConfigError` that
/// names file, line and column. Knows nothing of commands and options. Pure functions, but for
/// `read_config_file`.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {

/// Largest file, bytes: some twenty times what all options take.
inline constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 18;
/// Most keys and tables.
inline constexpr std::size_t kMaxConfigEntries = 4096;
/// Most parts of a key, those of its tables included; bench.attention.batch has three.
inline constexpr std::size_t kMaxConfigParts = 8;
/// Deepest nesting of arrays and inline tables.
inline constexpr std::size_t kMaxConfigDepth = 16;
/// Most dots in a line, those of strings included: how deep one line can make tables nest while the
/// file is parsed, before the parts of its keys are known.
inline constexpr std::size_t kMaxConfigDots = 64;
/// Longest key and longest string, bytes.
inline constexpr std::size_t kMaxConfigText = 4096;

/// Where something begins in a file: line and column, from 1.
struct ConfigPlace {
  std::uint32_t line = 0;
  std::uint32_t column = 0;

  friend auto operator<=>(const ConfigPlace&, const ConfigPlace&) = default;
};

/// What a value is in TOML.
enum class ConfigKind : std::uint8_t { boolean, integer, real, text, list, table, time };

/// A value. Tables have no content here: what they hold are entries of their own.
struct ConfigValue {
  ConfigKind kind = ConfigKind::table;
  std::string text{};                ///< of a boolean, number or string, as a command line has it
  std::vector<ConfigValue> items{};  ///< of a list
  ConfigPlace place{};
};

/// A key with its value; a table comes before what it holds.
struct ConfigEntry {
  std::vector<std::string> path;  ///< tables from the outermost, then the key
  ConfigPlace place;              ///< of the key
  ConfigValue value;
};

/// The entries of `text`, in the order in which they are written. `path` is named in errors. Throws
/// ConfigError (bad_input).
std::vector<ConfigEntry> parse_config(std::string_view text, const std::string& path);

/// The bytes of a file. Throws ConfigError (bad_input) when it cannot be read or is too large.
std::string read_config_file(const std::filesystem::path& path);

/// `text` as a TOML string in double quotes, on one line, control characters escaped; what is not
/// UTF-8 becomes U+FFFD.
std::string toml_quoted(std::string_view text);

}  // namespace kvarena::tools
