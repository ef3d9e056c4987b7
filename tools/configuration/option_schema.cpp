#include "tools/configuration/option_schema.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>

namespace kvarena::tools {
namespace {

constexpr std::array<std::string_view, 5> kNumberWords{"N", "INT", "UINT", "FLOAT", "US"};
constexpr std::array<std::string_view, 4> kWholeWords{"N", "INT", "UINT", "SIZE"};
constexpr std::array<std::string_view, 6> kTextWords{"TEXT", "FILE", "DIR", "NAME", "MODEL", "-"};
constexpr std::string_view kManyNumbers = "N[,N...]";

bool is_one_of(std::span<const std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// The alternatives of "N|unlimited", without what validators add behind a colon.
std::vector<std::string_view> alternatives(std::string_view words) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto bar = words.find('|');
    const std::string_view part = words.substr(0, bar);
    const auto colon = part.find(':');
    const bool is_validated = is_one_of(kNumberWords, part.substr(0, colon)) ||
                              is_one_of(kTextWords, part.substr(0, colon));
    parts.push_back(is_validated ? part.substr(0, colon) : part);
    if (bar == std::string_view::npos) return parts;
    words.remove_prefix(bar + 1);
  }
}

std::string variable_of(std::string_view table, std::string_view key) {
  std::string name = fmt::format("KVARENA_{}{}{}", table, table.empty() ? "" : "_", key);
  for (char& c : name) {
    c = c == '-' || c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

void walk(CLI::App& command, const std::string& table, OptionSchema& schema) {
  schema.commands.push_back({&command, table, variable_of(table, "")});
  for (CLI::Option* option : command.get_options()) {
    const bool is_positional = option->get_positional();
    if (!is_positional && option->get_lnames().empty()) continue;
    const std::string key = is_positional ? option->get_name(true) : option->get_lnames().front();
    const bool is_hidden = option->get_group().empty();
    schema.options.push_back({&command, option, table, key, variable_of(table, key),
                              option->get_configurable() && !is_positional && !is_hidden});
  }
  for (CLI::App* inner : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (inner->get_group().empty()) continue;
    walk(*inner, table.empty() ? inner->get_name() : table + "." + inner->get_name(), schema);
  }
}

}  // namespace

ValueForm ValueForm::of(const CLI::Option& option) {
  ValueForm form;
  form.word = option.get_type_name();
  if (option.get_expected_max() == 0) {
    form.boolean = true;
    form.word = "true|false";
    return form;
  }
  for (const std::string_view word : alternatives(form.word)) {
    const bool is_many = word == kManyNumbers;
    const bool is_choice = !word.empty() && std::islower(static_cast<unsigned char>(word[0])) != 0;
    const bool is_number = !is_choice && !is_one_of(kTextWords, word);
    form.text = form.text || !is_one_of(kNumberWords, word);
    form.integer = form.integer || is_number;
    form.real = form.real || (is_number && !is_many && !is_one_of(kWholeWords, word));
    form.is_joined = form.is_joined || is_many;
  }
  form.list = form.is_joined || option.get_items_expected_max() > 1;
  return form;
}

bool ValueForm::takes(ConfigKind kind) const noexcept {
  switch (kind) {
    case ConfigKind::boolean: return boolean;
    case ConfigKind::integer: return integer;
    case ConfigKind::real: return real;
    case ConfigKind::text: return text;
    case ConfigKind::list: return list;
    case ConfigKind::table:
    case ConfigKind::time: break;
  }
  return false;
}

std::string ValueForm::description() const {
  if (boolean) return "true or false";
  std::vector<const char*> kinds;
  if (text) kinds.push_back("a string");
  if (real) kinds.push_back("a number");
  if (integer && !real) kinds.push_back("a whole number");
  if (list) kinds.push_back("an array of them");
  return fmt::format("{} ({})", fmt::join(kinds, " or "), word);
}

OptionSchema OptionSchema::of(CLI::App& root) {
  OptionSchema schema;
  walk(root, "", schema);
  return schema;
}

const CommandName* OptionSchema::find_command(std::string_view table) const {
  const auto found = std::find_if(commands.begin(), commands.end(),
                                  [&](const CommandName& name) { return name.table == table; });
  return found == commands.end() ? nullptr : &*found;
}

const CommandOption* OptionSchema::find(std::string_view table, std::string_view key) const {
  const auto found = std::find_if(options.begin(), options.end(), [&](const CommandOption& option) {
    return option.table == table && option.key == key;
  });
  return found == options.end() ? nullptr : &*found;
}

const CommandOption* OptionSchema::find_variable(std::string_view variable) const {
  const auto found = std::find_if(options.begin(), options.end(), [&](const CommandOption& option) {
    return option.variable == variable;
  });
  return found == options.end() ? nullptr : &*found;
}

const CommandName* OptionSchema::command_of_variable(std::string_view variable) const {
  const CommandName* longest = nullptr;
  for (const CommandName& name : commands) {
    if (name.table.empty() || !variable.starts_with(name.prefix)) continue;
    if (longest == nullptr || name.prefix.size() > longest->prefix.size()) longest = &name;
  }
  return longest;
}

std::string command_words(std::string_view table) {
  std::string words = "kvarena";
  if (!table.empty()) words += fmt::format(" {}", table);
  std::replace(words.begin(), words.end(), '.', ' ');
  return words;
}

}  // namespace kvarena::tools
