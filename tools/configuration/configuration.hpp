#pragma once

/// @file
/// `Configuration`: values of options that are not on the command line. CLI11 asks for them as for
/// a configuration file, after it has read the command line. Ranges, needs and excludes then hold
/// for them as for values of the command line. The command line wins over them. When two options
/// exclude each other, the one from the stronger source stays. The other one is dropped, together
/// with the options that need only it. (CLI11's own variables would lose against a file.)
/// docs/reference/command.md has the order of sources. One thread.

#include "tools/configuration/config_file.hpp"
#include "tools/console.hpp"

#include <istream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
struct ConfigItem;
}  // namespace CLI

namespace kvarena::tools {

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
