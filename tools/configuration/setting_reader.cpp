#include "tools/configuration/setting_reader.hpp"

#include "tools/configuration/config_error.hpp"
#include "tools/nearest_name.hpp"

#include "base/excerpt.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace kvarena::tools {
namespace {

using Source = ConfigOrigin::Source;

constexpr const char* kConfigVariable = "KVARENA_CONFIG";  // names a file
constexpr std::array<std::string_view, 4> kTrue{"true", "1", "yes", "on"};
constexpr std::array<std::string_view, 4> kFalse{"false", "0", "no", "off"};

/// "bench.attention"; a part that has a dot of its own stays apart from two parts.
std::string joined(const std::vector<std::string>& parts) {
  std::string name;
  for (const std::string& part : parts) {
    if (!name.empty()) name += '.';
    name += part.find_first_of(".\"") == std::string::npos ? part : toml_quoted(part);
  }
  return name;
}

std::string table_words(std::string_view table) {
  return table.empty() ? "the options of all commands" : fmt::format("[{}]", table);
}

std::string help_of(std::string_view table) {
  return fmt::format("'{} --help' lists the options", command_words(table));
}

/// What was found, for people.
std::string found(const ConfigValue& value) {
  switch (value.kind) {
    case ConfigKind::boolean: return value.text;
    case ConfigKind::integer:
    case ConfigKind::real: return fmt::format("the number {}", value.text);
    case ConfigKind::text: return "the string " + excerpt_of(value.text);
    case ConfigKind::list: return value.items.empty() ? "an empty array" : "an array";
    case ConfigKind::table: return "a table";
    case ConfigKind::time: break;
  }
  return "a date or time";
}

/// What to do about a name that is no option of the table's command.
std::string suggestion(const OptionSchema& schema, const std::string& table,
                       const std::string& key) {
  std::vector<std::string> names;
  std::vector<std::string> elsewhere;
  for (const CommandOption& option : schema.options) {
    if (!option.is_configurable) continue;
    if (option.table == table) names.push_back(option.key);
    if (option.key == key) elsewhere.push_back(table_words(option.table));
  }
  if (!elsewhere.empty()) {
    return fmt::format("{} belongs to {}", key, fmt::join(elsewhere, ", "));
  }
  const std::string prefix = table.empty() ? "" : table + ".";
  for (const CommandName& command : schema.commands) {
    if (!command.table.empty() && command.table.starts_with(prefix)) {
      names.push_back(command.table.substr(prefix.size()));
    }
  }
  const std::string nearest = nearest_name(key, names);
  return nearest.empty() ? help_of(table) : fmt::format("did you mean {}?", nearest);
}

std::string refusal(const CommandOption& option) {
  return fmt::format("{} of {} belongs on the command line alone", option.key,
                     command_words(option.table));
}

/// Why the value is not one for the option.
[[noreturn]] void refuse_value(const CommandOption& option, const ValueForm& form,
                               const ConfigValue& value, const std::string& path) {
  std::string advice = fmt::format("'{} --help' says what it takes", command_words(option.table));
  if (value.kind == ConfigKind::text && !form.text) advice = "take the quotes away";
  if (form.text && value.kind != ConfigKind::text && !value.text.empty()) {  // a number
    advice = fmt::format("write {} = {}", option.key, toml_quoted(value.text));
  }
  throw ConfigError(
      ExitCode::bad_input,
      fmt::format("{}:{}:{}: {} of {} is {}", path, value.place.line, value.place.column,
                  option.key, command_words(option.table), found(value)),
      form.description(), advice);
}

bool is_finite_number(const ConfigValue& value) {
  return value.kind != ConfigKind::real || value.text.find_first_of("in") == std::string::npos;
}

/// As on the command line. Throws where the types differ.
std::vector<std::string> values_of(const CommandOption& option, const ConfigValue& value,
                                   const std::string& path) {
  const ValueForm form = ValueForm::of(*option.option);
  const auto check = [&](const ConfigValue& one, bool is_right) {
    if (!is_right || !form.takes(one.kind)) refuse_value(option, form, one, path);
  };
  check(value, is_finite_number(value));
  if (value.kind != ConfigKind::list) return {value.text};
  check(value, !value.items.empty());
  std::vector<std::string> values;
  for (const ConfigValue& item : value.items) {
    check(item, item.kind != ConfigKind::list && is_finite_number(item));
    values.push_back(item.text);
  }
  if (form.is_joined) return {fmt::format("{}", fmt::join(values, ","))};
  return values;
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const auto comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

std::vector<std::string> values_of(const CommandOption& option, const std::string& text) {
  const ValueForm form = ValueForm::of(*option.option);
  if (form.list && !form.is_joined) return split(text);
  if (!form.boolean) return {text};
  if (std::find(kTrue.begin(), kTrue.end(), text) != kTrue.end()) return {"true"};
  if (std::find(kFalse.begin(), kFalse.end(), text) != kFalse.end()) return {"false"};
  throw ConfigError(ExitCode::usage, fmt::format("{}={}", option.variable, excerpt_of(text)),
                    "1, true, yes, on, 0, false, no or off", "");
}

}  // namespace

std::string ConfigOrigin::text() const {
  switch (source) {
    case Source::default_value: break;
    case Source::user_file:
    case Source::file: return fmt::format("{}:{}", path, place.line);
    case Source::environment: return "env " + variable;
    case Source::command_line: return "command line";
  }
  return "default";
}

std::string ConfigOrigin::place_text() const {
  if (source == Source::environment) return variable;
  return path.empty() ? text() : fmt::format("{}:{}", text(), place.column);
}

std::optional<ConfigSetting> read_entry(const OptionSchema& schema, const ConfigEntry& entry,
                                        Source source, const std::string& path) {
  const std::string name = joined(entry.path);
  const std::string table = joined({entry.path.begin(), entry.path.end() - 1});
  const std::string& key = entry.path.back();
  const ConfigOrigin at_key{.source = source, .path = path, .place = entry.place};
  const ConfigOrigin at_value{.source = source, .path = path, .place = entry.value.place};
  const CommandOption* option = schema.find(table, key);
  const bool is_option = option != nullptr && option->is_configurable;
  if (!is_option && schema.find_command(name) != nullptr) {
    if (entry.value.kind == ConfigKind::table) return std::nullopt;
    throw ConfigError(ExitCode::bad_input,
                      fmt::format("{}: {} is {}", at_value.place_text(), name, found(entry.value)),
                      fmt::format("a table: the options of '{}'", command_words(name)),
                      fmt::format("write [{}] and below it its options", name));
  }
  if (option == nullptr) {
    throw ConfigError(ExitCode::bad_input,
                      fmt::format("{}: {} is not known", at_key.place_text(), excerpt_of(key)),
                      fmt::format("an option of '{}' without its dashes, or a command's table",
                                  command_words(table)),
                      suggestion(schema, table, key));
  }
  if (!option->is_configurable) {
    throw ConfigError(ExitCode::bad_input,
                      fmt::format("{}: {}", at_key.place_text(), refusal(*option)), "",
                      "take the line out");
  }
  return ConfigSetting{option->option, values_of(*option, entry.value, path), at_value};
}

std::optional<ConfigSetting> read_variable(const OptionSchema& schema, const std::string& name,
                                           const std::string& value) {
  if (name == kConfigVariable || value.empty()) return std::nullopt;
  const CommandOption* option = schema.find_variable(name);
  const CommandName* command = schema.command_of_variable(name);
  if (option == nullptr && command == nullptr) return std::nullopt;
  if (option == nullptr) {
    std::vector<std::string> names;
    for (const CommandOption& known : schema.options) {
      if (known.is_configurable && known.variable.starts_with(command->prefix)) {
        names.push_back(known.variable);
      }
    }
    const std::string nearest = nearest_name(name, names);
    throw ConfigError(
        ExitCode::usage, fmt::format("the environment has {}, which is no option", name),
        fmt::format("{}OPTION, for an option of '{}'", command->prefix,
                    command_words(command->table)),
        nearest.empty() ? help_of(command->table) : fmt::format("did you mean {}?", nearest));
  }
  if (!option->is_configurable && command == nullptr) return std::nullopt;  // KVARENA_VERSION
  if (!option->is_configurable) {
    throw ConfigError(ExitCode::usage, fmt::format("{}: {}", name, refusal(*option)), "",
                      fmt::format("unset {}", name));
  }
  return ConfigSetting{
      option->option, values_of(*option, value), {.source = Source::environment, .variable = name}};
}

}  // namespace kvarena::tools
