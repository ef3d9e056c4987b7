#include "tools/configuration/configuration.hpp"

#include "tools/nearest_name.hpp"
#include "tools/usage.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <ranges>
#include <utility>

namespace kvarena::tools {
namespace {

constexpr const char* kConfigVariable = "KVARENA_CONFIG";  // names a file
constexpr const char* kNoFile = "/dev/null";  // CLI11 asks for values only when there is a file

/// Hands the question on to a Configuration.
class Asked : public CLI::Config {
 public:
  explicit Asked(Configuration& configuration) : configuration_(configuration) {}
  std::vector<CLI::ConfigItem> from_config(std::istream& file) const override {
    return configuration_.items(file);
  }
  std::string to_config(const CLI::App*, bool, bool, std::string) const override { return {}; }

 private:
  Configuration& configuration_;
};

bool is_hidden(const CLI::App& command) { return command.get_group().empty(); }

bool asks_for_help(const CLI::App* command) {
  for (; command != nullptr; command = command->get_parent()) {
    if (command->get_help_ptr() != nullptr && command->get_help_ptr()->count() > 0) return true;
  }
  return false;
}

bool is_flag(const CLI::Option& option) { return option.get_expected_max() == 0; }

/// As CLI11 reads a flag; what it does not understand, it refuses later.
bool is_false(const std::string& text) {
  bool is_true = true;
  return CLI::detail::lexical_cast(text, is_true) && !is_true;
}

std::string variable_of(std::string_view table, std::string_view key) {
  std::string name = fmt::format("KVARENA_{}{}{}", table, table.empty() ? "" : "_", key);
  for (char& c : name) {
    c = c == '-' || c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

std::string command_words(std::string table) {
  std::replace(table.begin(), table.end(), '.', ' ');
  return table.empty() ? "kvarena" : "kvarena " + table;
}

std::string help_of(const std::string& table) {
  return fmt::format("'{} --help' lists the options", command_words(table));
}

std::string meant(const std::string& nearest, const std::string& table) {
  return nearest.empty() ? help_of(table) : fmt::format("did you mean {}?", nearest);
}

}  // namespace

std::string ConfigOrigin::text() const {
  switch (source) {
    case Source::default_value: break;
    case Source::user_file:
    case Source::file: return place;
    case Source::environment: return "env " + place;
    case Source::command_line: return "command line";
  }
  return "default";
}

Configuration::Configuration(const Console& console, ConfigSources sources)
    : console_(console), sources_(std::move(sources)), found_(find_config_files(sources_)) {}

void Configuration::declare(CLI::App& root) {
  root_ = &root;
  const std::string named = sources_.variable(kConfigVariable).value_or("");
  const std::string file = named.empty() ? found_.project.string() : named;
  root.config_formatter(std::make_shared<Asked>(*this));
  config_ = root.set_config("--config", file.empty() ? kNoFile : file,
                            "Settings in place of the nearest kvarena.toml (also: KVARENA_CONFIG)");
  config_->option_text("FILE");
  config_->check([](const std::string& name) {
    return name.empty() ? "\"\" is no file name; expected a TOML file" : "";
  });
  if (!named.empty() && !std::ifstream(named)) config_->default_str(kNoFile);  // read_files says so
  no_config_ = root.add_flag("--no-config", no_config_given_,
                             "Only the command line counts: no file, no KVARENA_* variable");
  no_config_->configurable(false);
}

void Configuration::exclude_choice(CLI::Option& option, CLI::Option& choice,
                                   std::set<std::string> values) {
  choice_rules_.push_back({&option, &choice, std::move(values)});
}

void Configuration::list_options(CLI::App& command, const std::string& table) {
  tables_.push_back(table);
  for (CLI::Option* option : command.get_options()) {
    const bool is_positional = option->get_positional();
    if (!is_positional && option->get_lnames().empty()) continue;
    const std::string key = is_positional ? option->get_name(true) : option->get_lnames().front();
    options_.push_back(
        {&command, option, table, key, variable_of(table, key),
         option->get_configurable() && !is_positional && !option->get_group().empty()});
  }
  for (CLI::App* inner : command.get_subcommands([](CLI::App* app) { return !is_hidden(*app); })) {
    list_options(*inner, table.empty() ? inner->get_name() : table + "." + inner->get_name());
  }
}

std::vector<CLI::ConfigItem> Configuration::items(std::istream& file) {
  const CLI::App& chosen = chosen_command(*root_);
  if (&chosen == root_ || is_hidden(chosen) || asks_for_help(&chosen)) return {};
  list_options(*root_, "");
  for (const CommandOption& named : options_) {
    if (!named.is_configurable || !is_wanted(named) || named.option->count() == 0) continue;
    settings_[named.option] = {named.option->results(), {Source::command_line, ""}};
    if (!is_set(*named.option)) named.option->clear();  // needs, excludes: as if it were not there
  }
  if (no_config_->count() == 0 || is_false(no_config_->results().back())) {
    read_environment();
    read_files(file);
  } else if (config_->count() > 0) {
    throw CLI::ExcludesError("--no-config", "--config");
  }
  for (const Source source :
       {Source::command_line, Source::environment, Source::file, Source::user_file}) {
    displace_weaker(source);
  }
  std::vector<CLI::ConfigItem> items;
  for (const CommandOption& named : options_) {
    if (!is_wanted(named) || !is_set(*named.option) || named.option->count() > 0) continue;
    CLI::ConfigItem item;
    if (!named.table.empty()) item.parents = CLI::detail::split(named.table, '.');
    item.name = named.key;
    item.inputs = settings_.at(named.option).values;
    items.push_back(std::move(item));
  }
  return items;
}

bool Configuration::is_wanted(const CommandOption& named) const {
  return named.command->parsed() || (show_command_ != nullptr && show_command_->parsed());
}

void Configuration::read_files(std::istream& file) {
  std::string path = sources_.variable(kConfigVariable).value_or("");
  if (config_->count() > 0) path = config_->results().back();
  if (path.empty()) {
    path = found_.project.string();
    for (const std::string& warning : found_.project_warnings) console_.warning(warning);
  } else if (config_->count() == 0 && !std::ifstream(path)) {
    throw ConfigError(ExitCode::bad_input,
                      {.found = fmt::format("{} names {}, which cannot be read", kConfigVariable,
                                            printable(path)),
                       .expected = "a TOML file",
                       .advice = "check the name and the permissions, or use --no-config"});
  }
  for (const std::string& warning : found_.user_warnings) console_.warning(warning);
  if (!path.empty()) read_file(file, path, Source::file);
  if (found_.user.empty() || found_.user == path) return;
  std::ifstream user(found_.user);
  read_file(user, found_.user.string(), Source::user_file);
}

void Configuration::read_file(std::istream& text, const std::string& path, Source source) {
  files_.push_back(path);
  for (const ConfigEntry& entry : parse_config(text, path)) {
    const auto named = std::ranges::find_if(options_, [&](const CommandOption& option) {
      return option.table == entry.table && option.key == entry.key;
    });
    const bool is_table = std::ranges::find(tables_, entry.table) != tables_.end();
    if (is_table && entry.key.empty()) continue;
    const std::string place = fmt::format("{}:{}", path, entry.line);
    if (named == options_.end() || !named->is_configurable) {
      Finding finding = unknown_key(entry);
      finding.subject = printable(place);
      throw ConfigError(ExitCode::bad_input, std::move(finding));
    }
    std::vector<std::string> values = entry.values;
    if (named->option->get_items_expected_max() < 2) values = {CLI::detail::join(values, ",")};
    settings_.try_emplace(named->option, Setting{std::move(values), {source, place}});
  }
}

Finding Configuration::unknown_key(const ConfigEntry& entry) const {
  const bool is_table = entry.key.empty();
  const std::string name = is_table ? entry.table : entry.key;
  std::vector<std::string> names;
  std::vector<std::string> elsewhere;
  for (const CommandOption& option : options_) {
    if (option.key != entry.key && option.table != entry.table) continue;
    if (option.key == entry.key && option.table == entry.table) {
      return {.found = fmt::format("{} of {}, which belongs on the command line alone", name,
                                   command_words(entry.table)),
              .advice = "take the line out"};
    }
    if (!option.is_configurable) continue;
    if (option.table == entry.table) names.push_back(option.key);
    const std::string table =
        option.table.empty() ? "the lines before all tables" : fmt::format("[{}]", option.table);
    if (option.key == entry.key) elsewhere.push_back(table);
  }
  if (is_table) names = tables_;
  Finding finding{.found = excerpt_of(name),
                  .expected = is_table
                                  ? "the table of a command, such as [replay] or [bench.attention]"
                                  : fmt::format("an option of '{}' without its dashes",
                                                command_words(entry.table)),
                  .advice = meant(nearest_name(name, names), is_table ? "" : entry.table)};
  if (!is_table && !elsewhere.empty()) {
    finding.advice = fmt::format("{} belongs to {}", name, fmt::join(elsewhere, ", "));
  }
  return finding;
}

void Configuration::read_environment() {
  for (const auto& [name, value] : sources_.environment) {
    if (name != kConfigVariable && !value.empty()) read_variable(name, value);
  }
}

void Configuration::read_variable(const std::string& name, const std::string& value) {
  const std::string* table =
      nullptr;  // of the command whose variables begin like this, the innermost
  for (const std::string& known : tables_) {
    if (!known.empty() && name.starts_with(variable_of(known, ""))) table = &known;
  }
  std::vector<std::string> names;
  for (const CommandOption& named : options_) {
    if (named.is_configurable && named.variable == name) {
      const bool is_list = named.option->get_items_expected_max() > 1;
      settings_.try_emplace(named.option,
                            Setting{is_list ? CLI::detail::split(value, ',') : std::vector{value},
                                    {Source::environment, name}});
      return;
    }
    if (table == nullptr || named.table != *table) continue;
    if (named.variable == name) {
      throw ConfigError(ExitCode::usage,
                        {.found = fmt::format("{}: {} of {} belongs on the command line alone",
                                              name, named.key, command_words(*table)),
                         .advice = fmt::format("unset {}", name)});
    }
    if (named.is_configurable) names.push_back(named.variable);
  }
  if (table == nullptr) return;  // others' variables begin with KVARENA_ too
  throw ConfigError(
      ExitCode::usage,
      {.found = fmt::format("the environment has {}, which is no option", printable(name)),
       .expected = fmt::format("{}OPTION, for an option of '{}'", variable_of(*table, ""),
                               command_words(*table)),
       .advice = meant(nearest_name(name, names), *table)});
}

bool Configuration::is_set(const CLI::Option& option) const {
  const auto found = settings_.find(&option);
  if (found == settings_.end()) return false;
  return !is_flag(option) || !is_false(found->second.values.back());
}

void Configuration::displace_weaker(Source source) {
  for (const CommandOption& named : options_) {
    const CLI::Option& option = *named.option;
    if (origin_of(option).source != source || !is_wanted(named) || !is_set(option)) continue;
    for (CLI::Option* other : option.get_excludes()) displace(*other, source);
    const std::string& value = settings_.at(&option).values.back();
    for (const ChoiceRule& rule : choice_rules_) {
      if (rule.choice == &option && rule.values.contains(value)) displace(*rule.option, source);
      // The other way round where the choice's default goes with the option.
      if (rule.option == &option && is_set(*rule.choice) &&
          rule.values.contains(settings_.at(rule.choice).values.back()) &&
          !rule.values.contains(rule.choice->get_default_str())) {
        displace(*rule.choice, source);
      }
    }
  }
}

void Configuration::displace(CLI::Option& option, Source source) {
  if (!is_set(option) || origin_of(option).source >= source) return;
  settings_.erase(&option);
  for (const CommandOption& named : options_) {
    if (named.option->get_needs().contains(&option)) displace(*named.option, source);
  }
  for (const NeedRule& rule : need_rules_) {
    const bool is_left = std::ranges::any_of(
        rule.wanted, [this](const CLI::Option* wanted) { return is_set(*wanted); });
    if (rule.wanted.contains(&option) && !is_left) displace(*rule.option, source);
  }
}

ConfigOrigin Configuration::origin_of(const CLI::Option& option) const {
  const auto found = settings_.find(&option);
  return found == settings_.end() ? ConfigOrigin{} : found->second.origin;
}

ConfigOrigin Configuration::origin_of_refused(const std::string& words) const {
  for (const CommandOption& named : options_ | std::views::reverse) {  // the last that was taken
    const ConfigOrigin origin = origin_of(*named.option);
    const std::string name = named.option->get_name();
    const bool is_named =
        words.starts_with(name + ":") || words.find(" " + name + " ") != words.npos;
    if (is_named && is_wanted(named) && origin.source < Source::command_line &&
        origin.source > Source::default_value && named.option->count() > 0) {
      return origin;
    }
  }
  return {};
}

std::string Configuration::remark() const {
  std::string lines;
  for (const CommandOption& named : options_) {
    const CLI::Option& option = *named.option;
    const ConfigOrigin origin = origin_of(option);
    if (named.table.empty() || !named.command->parsed() || option.count() == 0 ||
        origin.source == Source::default_value || origin.source == Source::command_line) {
      continue;
    }
    lines += printable(fmt::format("  configured: {} {} ({})", option.get_name(),
                                   fmt::join(option.results(), " "), origin.text())) +
             '\n';
  }
  return lines;
}

}  // namespace kvarena::tools
