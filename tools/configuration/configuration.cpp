#include "tools/configuration/configuration.hpp"

#include "tools/configuration/config_error.hpp"

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

void Configuration::join_option(const CommandOption& named) {
  CLI::Option& option = *named.option;
  if (option.count() > 0) {
    if (is_off(option)) option.clear();  // needs and excludes: as if it were not there
    settings_.insert_or_assign(&option,
                               ConfigSetting{&option, {}, {.source = Source::command_line}});
    return;
  }
  const auto found = settings_.find(&option);
  if (found == settings_.end()) return;
  const auto& [_, values, origin] = found->second;
  if (option.get_expected_max() == 0 && values.front() == "false") return;
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
  if (option.count() == 0) return;
  const auto is_ours = [this](const CLI::Option& one) {
    return origin_of(one).source < Source::command_line;
  };
  for (const CLI::Option* other : option.get_excludes()) {
    if (other->count() == 0 || (!is_ours(option) && !is_ours(*other))) continue;
    throw ConfigError(ExitCode::usage,
                      fmt::format("{} excludes {}", described(option), described(*other)), "",
                      "take one of them away; --no-config leaves files and variables out");
  }
  for (const CLI::Option* other : option.get_needs()) {
    if (other->count() > 0 || !is_ours(option)) continue;
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
    lines +=
        fmt::format("  configured: {} {} ({})\n", option.get_name(),
                    printable(fmt::format("{}", fmt::join(option.results(), " "))), origin.text());
  }
  return lines;
}

}  // namespace kvarena::tools
