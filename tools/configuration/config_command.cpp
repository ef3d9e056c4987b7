#include "tools/command_line.hpp"

#include "tools/configuration/configuration.hpp"
#include "tools/nearest_name.hpp"
#include "tools/result_file.hpp"
#include "tools/usage.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace kvarena::tools {
namespace {

using Json = nlohmann::ordered_json;
using Source = ConfigOrigin::Source;

constexpr const char* kConfigFooter = R"(
Examples:
  kvarena config show                          every option: what is set, defaults as comments
  kvarena config show replay --origin          of one command, and where each value came from
  kvarena config show bench attention --json - the same for programs
  kvarena config show > new.toml               a file to begin with, to be called kvarena.toml

Values come, the strongest first, from the command line, from KVARENA_* variables, from kvarena.toml
in this folder or its nearest parent (or --config FILE, KVARENA_CONFIG), from the user's
~/.config/kvarena/kvarena.toml, and else are defaults. docs/reference/command.md has more.
)";

constexpr const char* name_of(Source source) {
  switch (source) {
    case Source::default_value: break;
    case Source::user_file: return "user file";
    case Source::file: return "file";
    case Source::environment: return "environment";
    case Source::command_line: return "command line";
  }
  return "default";
}

/// A string without bytes that are not UTF-8, which JSON could not hold.
Json text_json(const std::string& text) { return Json::parse(toml_quoted(text)); }

/// `text` as a number where it is written as one.
Json typed(const std::string& text) {
  const Json number = Json::parse(text, nullptr, false);
  return number.is_number() && number.dump() == text ? number : text_json(text);
}

/// The option's value, null where there is none.
Json value_of(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return option.count() > 0;
  const std::string fallback = option.get_default_str();
  if (option.count() == 0 && fallback.empty()) return {};
  if (option.get_items_expected_max() < 2) {
    return typed(option.count() > 0 ? option.results().back() : fallback);
  }
  Json list = Json::array();
  const auto texts = option.count() > 0 ? option.results() : CLI::detail::split(fallback, ',');
  for (const std::string& text : texts) list.push_back(typed(text));
  return list;
}

/// JSON's numbers, strings, booleans and arrays of them are TOML's.
std::string toml_of(const Json& value) {
  if (value.is_string()) return toml_quoted(value.get<std::string>());
  if (!value.is_array()) return value.dump();
  std::vector<std::string> items;
  for (const Json& item : value) items.push_back(toml_of(item));
  return fmt::format("[{}]", fmt::join(items, ", "));
}

/// For a comment: a path with a line's end in it must not end the comment.
std::string one_line(const std::string& text) {
  const std::string quoted = toml_quoted(text);
  return quoted.size() == text.size() + 2 ? text : quoted;
}

class ConfigCommand {
 public:
  explicit ConfigCommand(Configuration& configuration) : configuration_(configuration) {}
  CLI::App* declare(CLI::App& parent);
  ExitCode run(const Console& console);

 private:
  bool is_chosen(const CommandOption& option) const {
    return option.is_configurable &&
           (table_.empty() || option.table == table_ || option.table.starts_with(table_ + "."));
  }
  bool find_table(const Console& console);
  std::string toml() const;
  std::string line_of(const CommandOption& named) const;

  Configuration& configuration_;
  std::vector<std::string> words_;  // of the command whose options are shown
  std::string table_;               // the same as a table; empty: all
  bool origin_ = false;
  std::string json_;
};

CLI::App* ConfigCommand::declare(CLI::App& parent) {
  CLI::App* config = parent.add_subcommand("config", "Look at the configuration");
  config->require_subcommand(1);
  config->footer(kConfigFooter);
  CLI::App* show = config->add_subcommand("show", "The value of every option, as a kvarena.toml");
  show->footer(kConfigFooter);
  show->add_option("COMMAND", words_, "Only this command's options, such as bench attention");
  show->add_flag("--origin", origin_, "Also where each value came from")->configurable(false);
  declare_json_option(*show, json_);
  configuration_.show_with(show);
  return config;
}

bool ConfigCommand::find_table(const Console& console) {
  table_ = fmt::format("{}", fmt::join(words_, "."));
  if (std::ranges::any_of(configuration_.options(),
                          [this](const CommandOption& option) { return is_chosen(option); })) {
    return true;
  }
  const std::string nearest = nearest_name(table_, configuration_.tables());
  console.error(fmt::format("'kvarena {}' is no command with options to configure",
                            printable(fmt::format("{}", fmt::join(words_, " ")))),
                "a command such as replay or bench attention",
                nearest.empty() ? "'kvarena --help' lists the commands"
                                : fmt::format("did you mean {}?", nearest));
  return false;
}

std::string ConfigCommand::line_of(const CommandOption& named) const {
  const Json value = value_of(*named.option);
  const ConfigOrigin origin = configuration_.origin_of(*named.option);
  const bool is_set = origin.source != Source::default_value;
  std::string line = fmt::format("{}{} = ", is_set ? "" : "# ", named.key);
  line += value.is_null() ? fmt::format("<{}>", type_word(*named.option)) : toml_of(value);
  if (!origin_) return line + '\n';
  return fmt::format("{:<40} # {}\n", line, value.is_null() ? "not set" : one_line(origin.text()));
}

std::string ConfigCommand::toml() const {
  std::string text;
  if (origin_) {
    for (const std::string& file : configuration_.files()) {
      text += fmt::format("# read: {}\n", one_line(file));
    }
  }
  std::string table;
  for (const CommandOption& option : configuration_.options()) {
    if (!is_chosen(option)) continue;
    if (option.table != table) text += fmt::format("\n[{}]\n", option.table);
    table = option.table;
    text += line_of(option);
  }
  return text;
}

ExitCode ConfigCommand::run(const Console& console) {
  if (!find_table(console)) return ExitCode::usage;
  Json options = Json::array();
  for (const CommandOption& named : configuration_.options()) {
    if (!is_chosen(named)) continue;
    const ConfigOrigin origin = configuration_.origin_of(*named.option);
    options.push_back({{"command", named.table},
                       {"option", named.key},
                       {"value", value_of(*named.option)},
                       {"source", name_of(origin.source)},
                       {"origin", text_json(origin.text())},
                       {"variable", named.variable},
                       {"takes", type_word(*named.option)}});
  }
  Json files = Json::array();
  for (const std::string& file : configuration_.files()) files.push_back(text_json(file));
  return print_result(console, json_, toml(), {{"files", files}, {"options", options}});
}

}  // namespace

Command config_command(CLI::App& parent, Configuration& configuration) {
  return make_command<ConfigCommand>(parent, configuration);
}

}  // namespace kvarena::tools
