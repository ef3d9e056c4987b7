#pragma once

/// @file
/// `Configuration`: values of options that are not on the command line. CLI11 asks for them as for
/// a configuration file, after it has read the command line. Ranges, needs and excludes then hold
/// for them as for values of the command line. The command line wins over them. When two options
/// exclude each other, the one from the stronger source stays. The other one is dropped, together
/// with the options that need only it. (CLI11's own variables would lose against a file.)
/// docs/reference/command.md has the order of sources. One thread.
///
/// `parse_config` reads kvarena.toml as a list of settings with their lines (config_file.cpp). The
/// accepted part of TOML is tables, and keys with a string, a number, a boolean or an array of
/// these on one or more lines. A wrong file gives one `ConfigError`. `ConfigSources` has the
/// sources besides the command line; they are injected, so no test depends on its user's
/// environment.

#include "base/finding.hpp"
#include "tools/console.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <istream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
struct ConfigItem;
}  // namespace CLI

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

/// An option and its names. Refers to what the command line's root owns.
struct CommandOption {
  CLI::App* command = nullptr;
  CLI::Option* option = nullptr;
  std::string table{};     ///< "replay", "bench.attention"; empty: of all commands
  std::string key{};       ///< "block-size"; of a positional its name
  std::string variable{};  ///< "KVARENA_REPLAY_BLOCK_SIZE"
  bool is_configurable = true;
};

/// Where a value came from.
struct ConfigOrigin {
  /// The sources, each winning over those before it.
  enum class Source : std::uint8_t { default_value, user_file, file, environment, command_line };

  Source source = Source::default_value;
  std::string place{};  ///< "/srv/kvarena.toml:12", "KVARENA_QUIET"

  /// "default", "env KVARENA_QUIET", "/srv/kvarena.toml:12", "command line".
  std::string text() const;
};

/// The configured values and their sources.
class Configuration {
 public:
  Configuration(const Console& console, ConfigSources sources);

  /// Declares --config and --no-config on the root, and joins in whenever it parses. Parsing then
  /// also throws ConfigError.
  void declare(CLI::App& root);
  /// `command` is for looking at the configuration: when it is chosen, values join the options of
  /// all commands, and else only those of the command chosen.
  void show_with(const CLI::App* command) { show_command_ = command; }

  /// Says that `option` and `choice` with one of `values` exclude each other. The one from the
  /// weaker source is dropped. When both sources are equally strong, the command reports the
  /// contradiction.
  void exclude_choice(CLI::Option& option, CLI::Option& choice, std::set<std::string> values);
  /// Says that `option` needs one of `wanted`. It is dropped together with the last of them that a
  /// stronger source excludes. The command refuses it where none was given.
  void need_any(CLI::Option& option, std::set<const CLI::Option*> wanted) {
    need_rules_.push_back({&option, std::move(wanted)});
  }

  /// All options and, as tables, all commands, but for hidden ones, in the order of their
  /// declaration; empty until a command line has been parsed.
  const std::vector<CommandOption>& options() const noexcept { return options_; }
  const std::vector<std::string>& tables() const noexcept { return tables_; }
  /// The files read, the strongest first.
  const std::vector<std::string>& files() const noexcept { return files_; }
  /// Where the option's value came from.
  ConfigOrigin origin_of(const CLI::Option& option) const;
  /// Returns the source of the value that CLI11 refuses with this message; "default" when it is
  /// from the command line.
  ConfigOrigin origin_of_refused(const std::string& words) const;
  /// Returns the values of the chosen command that are not from the command line, with their
  /// sources, a line each. A report of an error shows them. Empty when all values are from the
  /// command line.
  std::string remark() const;

  /// What CLI11 adds to the results of the command line; `file` is the one that it has opened.
  std::vector<CLI::ConfigItem> items(std::istream& file);

 private:
  using Source = ConfigOrigin::Source;
  struct Setting {
    std::vector<std::string> values;  // as on the command line
    ConfigOrigin origin;
  };
  struct NeedRule {
    CLI::Option* option;
    std::set<const CLI::Option*> wanted;
  };
  struct ChoiceRule {
    CLI::Option* option;
    CLI::Option* choice;
    std::set<std::string> values;  // of the choice, with which the option has no place
  };

  void list_options(CLI::App& command, const std::string& table);
  void read_file(std::istream& text, const std::string& path, Source source);
  void read_files(std::istream& file);
  void read_environment();
  void read_variable(const std::string& name, const std::string& value);
  Finding unknown_key(const ConfigEntry& entry) const;
  bool is_wanted(const CommandOption& named) const;
  bool is_set(const CLI::Option& option) const;
  void displace_weaker(Source source);
  void displace(CLI::Option& option, Source source);

  const Console& console_;
  ConfigSources sources_;
  CLI::App* root_ = nullptr;
  CLI::Option* config_ = nullptr;
  CLI::Option* no_config_ = nullptr;
  bool no_config_given_ = false;
  const CLI::App* show_command_ = nullptr;
  std::vector<ChoiceRule> choice_rules_;
  std::vector<NeedRule> need_rules_;
  FoundConfig found_;
  std::vector<CommandOption> options_;
  std::vector<std::string> tables_;
  std::vector<std::string> files_;
  std::map<const CLI::Option*, Setting> settings_;  // the strongest of each option
};

}  // namespace kvarena::tools
