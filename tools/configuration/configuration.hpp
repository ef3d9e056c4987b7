#pragma once

/// @file
/// `Configuration`: options' values that are not on the command line. They join CLI11's own results
/// once all words of the command line are read and before any option takes its value, so that
/// ranges, needs and excludes hold for them exactly as for the command line, which wins. Of options
/// that exclude one another the one from the stronger source stays, and what needs only the other
/// goes with it. docs/cli.md has the order of sources. One thread.

#include "tools/configuration/config_sources.hpp"
#include "tools/configuration/option_schema.hpp"
#include "tools/configuration/setting_reader.hpp"
#include "tools/console.hpp"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvarena::tools {

/// What is configured, and from where.
class Configuration {
 public:
  Configuration(const Console& console, ConfigSources sources);

  /// Declares --config and --no-config on the root, and joins in whenever it parses. Before any
  /// other option of the root. Parsing then also throws ConfigError.
  void declare(CLI::App& root);
  /// `command` is for looking at the configuration: when it is chosen, values join the options of
  /// all commands, and else only those of the command chosen.
  void show_with(const CLI::App* command) { show_command_ = command; }

  /// `option` has no place where `choice` is one of `values`, and so goes where a stronger source
  /// than its own chooses one. From equal sources they meet, and the command complains.
  void exclude_choice(CLI::Option& option, const CLI::Option& choice, std::set<std::string> values);

  /// All options; empty until a command line has been parsed.
  const OptionSchema& schema() const noexcept { return schema_; }
  /// The files read, the strongest first.
  const std::vector<std::string>& files() const noexcept { return files_; }
  /// Where the option's value came from.
  ConfigOrigin origin_of(const CLI::Option& option) const;
  /// For a complaint about the options of the command chosen: which of its own values are not from
  /// the command line, and where they are from, a line each. Empty when all are.
  std::string remark() const;

 private:
  struct ChoiceRule {
    CLI::Option* option;
    const CLI::Option* choice;
    std::set<std::string> values;  // of the choice, with which the option has no place
  };

  void join();
  void read_files();
  void read_file(const std::string& path, ConfigOrigin::Source source);
  void read_environment();
  bool is_wanted(const CLI::App* command) const;
  void take_command_line(CLI::Option& option);
  bool is_set(const CLI::Option& option) const;
  void displace_weaker(ConfigOrigin::Source source);
  void displace(CLI::Option& option, ConfigOrigin::Source source);
  void join_option(const CommandOption& option);
  void check_relations(const CommandOption& option) const;
  std::string described(const CLI::Option& option) const;

  const Console& console_;
  ConfigSources sources_;
  CLI::App* root_ = nullptr;
  const CLI::App* show_command_ = nullptr;
  std::string config_path_;
  bool no_config_ = false;
  std::vector<ChoiceRule> choice_rules_;
  OptionSchema schema_;
  std::vector<std::string> files_;
  std::map<const CLI::Option*, ConfigSetting> settings_;  // the strongest of each option
};

}  // namespace kvarena::tools
