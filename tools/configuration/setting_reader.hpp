#pragma once

/// @file
/// Entries of a file and variables of the environment, held against the options that there are:
/// what is not one of them, or of another type, is a `ConfigError` that says what was meant.
/// Whether a number is in its range is the option's to say. Pure functions.

#include "tools/configuration/config_file.hpp"
#include "tools/configuration/option_schema.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvarena::tools {

/// Where a value came from.
struct ConfigOrigin {
  /// The sources, each winning over those before it.
  enum class Source : std::uint8_t { default_value, user_file, file, environment, command_line };

  Source source = Source::default_value;
  std::string variable{};  ///< of the environment
  std::string path{};      ///< of the file
  ConfigPlace place{};     ///< in it: of the value

  /// "default", "env KVARENA_QUIET", "/srv/kvarena.toml:12", "command line".
  std::string text() const;
  /// For errors: the same, a file with the column too, a variable by its name alone.
  std::string place_text() const;
};

/// An option's value from a source.
struct ConfigSetting {
  const CLI::Option* option = nullptr;
  std::vector<std::string> values{};  ///< as on the command line; one, but for lists
  ConfigOrigin origin{};
};

/// The setting that an entry of a file is; nothing for the table of a command. `source` is which
/// file `path` is. Throws ConfigError (bad_input).
std::optional<ConfigSetting> read_entry(const OptionSchema& schema, const ConfigEntry& entry,
                                        ConfigOrigin::Source source, const std::string& path);

/// The setting that a variable is; nothing for an empty one and for one that begins with no
/// command's name and is no global option. Throws ConfigError (usage).
std::optional<ConfigSetting> read_variable(const OptionSchema& schema, const std::string& name,
                                           const std::string& value);

}  // namespace kvarena::tools
