#pragma once

/// @file
/// Reads kvarena.toml as a list of settings with their lines, and writes strings as TOML. The
/// accepted part of TOML is tables, and keys with a string, a number, a boolean or an array of
/// these on one or more lines. A wrong file gives one `ConfigError`. The functions know no commands
/// or options. `ConfigSources` has the sources of configuration besides the command line; they are
/// injected, so no test depends on the environment and the folders of its user.

#include "tools/console.hpp"

#include "base/finding.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <istream>
#include <map>
#include <optional>
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

/// The name that is searched for.
inline constexpr const char* kConfigFileName = "kvarena.toml";

/// The environment and the files of a process. Empty: only the command line is used.
struct ConfigSources {
  std::map<std::string, std::string> environment{};  ///< variables named KVARENA_...
  std::filesystem::path folder{};     ///< where the search begins; empty: there is none
  std::filesystem::path user_file{};  ///< the user's own file, which may not exist; empty: none
  ::uid_t user = ::geteuid();         ///< whose files are trusted, besides root's

  /// Those of this process: its environment, current directory and
  /// $XDG_CONFIG_HOME/kvarena/kvarena.toml, or else ~/.config/kvarena/kvarena.toml.
  static ConfigSources of_process();

  /// The variable's value; nothing where it is empty or not set.
  std::optional<std::string> variable(const std::string& name) const;
};

/// The files that nobody named.
struct FoundConfig {
  std::filesystem::path project{};  ///< kvarena.toml of the folder or its nearest parent
  std::filesystem::path user{};     ///< the user's; empty where it is the project's
  std::vector<std::string> project_warnings{};  ///< what was passed over on the way, and why
  std::vector<std::string> user_warnings{};     ///< likewise of the user's
};

/// Searches for the files, up to the root of the file system. A file is skipped when the file or
/// its folder belongs neither to the user nor to root, or when everybody may write to it. The
/// reason is that a configuration can name files to write. Groups are trusted, because many users
/// have their own group, which may write to all files that they create.
FoundConfig find_config_files(const ConfigSources& sources);

}  // namespace kvarena::tools
