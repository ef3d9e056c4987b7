#include "tools/configuration/configuration.hpp"

#include "tools/configuration/config_error.hpp"

#include "base/excerpt.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <utility>

namespace kvarena::tools {
namespace {

using Source = ConfigOrigin::Source;

/// The command chosen: the innermost one.
const CLI::App* chosen_command(const CLI::App& root) {
  const CLI::App* command = &root;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return command;
}

bool asks_for_help(const CLI::App* command) {
  for (; command != nullptr; command = command->get_parent()) {
    if (command->get_help_ptr() != nullptr && command->get_help_ptr()->count() > 0) return true;
  }
  return false;
}

bool is_off(const CLI::Option& flag) {
  return flag.get_expected_max() == 0 && flag.count() > 0 && flag.results().back() == "false";
}

}  // namespace

Configuration::Configuration(const Console& console, ConfigSources sources)
    : console_(console), sources_(std::move(sources)) {}

void Configuration::declare(CLI::App& root) {
  root_ = &root;
  // CLI11 calls the options that have results in the order of their declaration, the root's first,
  // after all words of the command line have become results. This one always has a result.
  root.add_option_function<std::string>("", [this](const std::string&) { join(); })
      ->group("")
      ->configurable(false)
      ->add_result("joined");
  auto* config = root.add_option("--config", config_path_,
                                 "Settings in place of the nearest kvarena.toml (also: "
                                 "KVARENA_CONFIG)");
  config->type_name("FILE")->configurable(false);
  root.add_flag("--no-config", no_config_,
                "Only the command line counts: no file, no KVARENA_* variable")
      ->configurable(false)
      ->excludes(config);
}

void Configuration::exclude_choice(CLI::Option& option, const CLI::Option& choice,
                                   std::set<std::string> values) {
  choice_rules_.push_back({&option, &choice, std::move(values)});
}

void Configuration::join() {
  const CLI::App* chosen = chosen_command(*root_);
  const bool is_hidden = chosen->get_group().empty();
  if (chosen == root_ || is_hidden || asks_for_help(chosen)) return;
  schema_ = OptionSchema::of(*root_);
  const CLI::Option* no_config = root_->get_option("--no-config");
  if (no_config->count() == 0 || is_off(*no_config)) {
    read_files();
    read_environment();
  }
  for (const CommandOption& option : schema_.options) {
    if (option.is_configurable && is_wanted(option.command)) take_command_line(*option.option);
  }
  for (const Source source :
       {Source::command_line, Source::environment, Source::file, Source::user_file}) {
    displace_weaker(source);
  }
  for (const CommandOption& option : schema_.options) {
    if (option.is_configurable && is_wanted(option.command)) join_option(option);
  }
  for (const CommandOption& option : schema_.options) {
    if (is_wanted(option.command)) check_relations(option);
  }
}

bool Configuration::is_wanted(const CLI::App* command) const {
  return command->parsed() || (show_command_ != nullptr && show_command_->parsed());
}

void Configuration::read_files() {
  const CLI::Option* option = root_->get_option("--config");
  const std::string named = option->count() > 0 ? option->results().back()
                                                : sources_.variable("KVARENA_CONFIG").value_or("");
  ConfigSources searched = sources_;
  if (!named.empty()) searched.folder.clear();
  const FoundConfig found = find_config_files(searched);
  for (const std::string& warning : found.warnings) console_.warning(warning);
  if (!found.user.empty()) read_file(found.user.string(), Source::user_file);
  if (!named.empty()) read_file((sources_.folder / named).string(), Source::file);
  if (!found.project.empty()) read_file(found.project.string(), Source::file);
}

void Configuration::read_file(const std::string& path, Source source) {
  files_.insert(files_.begin(), path);
  for (const ConfigEntry& entry : parse_config(read_config_file(path), path)) {
    auto setting = read_entry(schema_, entry, source, path);
    if (setting) settings_.insert_or_assign(setting->option, std::move(*setting));
  }
}

void Configuration::read_environment() {
  for (const auto& [name, value] : sources_.environment) {
    auto setting = read_variable(schema_, name, value);
    if (setting) settings_.insert_or_assign(setting->option, std::move(*setting));
  }
}

void Configuration::take_command_line(CLI::Option& option) {
  if (option.count() == 0) return;
  settings_.insert_or_assign(
      &option, ConfigSetting{&option, option.results(), {.source = Source::command_line}});
  if (is_off(option)) option.clear();  // needs and excludes: as if it were not there
}

bool Configuration::is_set(const CLI::Option& option) const {
  const auto found = settings_.find(&option);
  if (found == settings_.end()) return false;
  return option.get_expected_max() > 0 || found->second.values.back() != "false";
}

void Configuration::displace_weaker(Source source) {
  for (const CommandOption& named : schema_.options) {
    const CLI::Option& option = *named.option;
    if (origin_of(option).source != source || !is_wanted(named.command) || !is_set(option)) {
      continue;
    }
    for (CLI::Option* other : option.get_excludes()) displace(*other, source);
    const std::string& value = settings_.at(&option).values.back();
    for (const ChoiceRule& rule : choice_rules_) {
      if (rule.choice == &option && rule.values.contains(value)) displace(*rule.option, source);
    }
  }
}

void Configuration::displace(CLI::Option& option, Source source) {
  if (!is_set(option) || origin_of(option).source >= source) return;
  settings_.erase(&option);
  for (const CommandOption& named : schema_.options) {
    if (named.option->get_needs().contains(&option)) displace(*named.option, source);
  }
}

void Configuration::join_option(const CommandOption& named) {
  CLI::Option& option = *named.option;
  if (!is_set(option)) return;
  const auto& [_, values, origin] = settings_.at(&option);
  if (origin.source == Source::command_line) return;
  for (const std::string& value : values) option.add_result(value);
  try {
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    const bool is_variable = origin.source == Source::environment;
    throw ConfigError(is_variable ? ExitCode::usage : ExitCode::bad_input,
                      fmt::format("{}: {}", origin.place_text(), error.what()), "",
                      fmt::format("'{} --help' says what it takes; --no-config leaves files and "
                                  "variables out",
                                  command_words(named.table)));
  }
}

void Configuration::check_relations(const CommandOption& named) const {
  const CLI::Option& option = *named.option;
  const bool is_ours = origin_of(option).source < Source::command_line;
  if (option.count() == 0 || !is_ours) return;  // CLI11 checks those of the command line
  for (const CLI::Option* other : option.get_excludes()) {
    if (other->count() == 0) continue;
    throw ConfigError(ExitCode::usage,
                      fmt::format("{} excludes {}", described(option), described(*other)), "",
                      "take one of them away; --no-config leaves files and variables out");
  }
  for (const CLI::Option* other : option.get_needs()) {
    if (other->count() > 0) continue;
    throw ConfigError(
        ExitCode::usage,
        fmt::format("{} needs {}, which is not set", described(option), other->get_name()), "",
        "set that too, or take this away; --no-config leaves files and variables out");
  }
}

std::string Configuration::described(const CLI::Option& option) const {
  return fmt::format("{} ({})", option.get_name(), origin_of(option).text());
}

ConfigOrigin Configuration::origin_of(const CLI::Option& option) const {
  const auto found = settings_.find(&option);
  return found == settings_.end() ? ConfigOrigin{} : found->second.origin;
}

std::string Configuration::remark() const {
  std::string lines;
  for (const CommandOption& named : schema_.options) {
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
