#include "tools/usage.hpp"

#include "tools/nearest_name.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>
#include <vector>

namespace kvarena::tools {
namespace {

constexpr std::size_t kTextColumn = 28;    // where descriptions begin
constexpr std::size_t kNarrow = 60;        // a terminal with no room for two columns
constexpr std::size_t kNarrowColumn = 6;   // there
constexpr char kGlue = '\1';               // a space at which no line ends
constexpr std::size_t kManyExcludes = 20;  // that a help does not list: the option's text says it
constexpr std::size_t kExampleIndent = 6;  // of what an example does, below it

/// `text` from the column `used` on, in lines of at most `width`; later lines begin at `indent`.
/// `end` closes every line but the last.
std::string wrapped(std::string_view text, std::size_t used, std::size_t indent, std::size_t width,
                    std::string_view end = "") {
  std::istringstream words{std::string(text)};
  std::string out;
  bool is_first = true;
  for (std::string word; words >> word; is_first = false) {
    const bool fits = used + 1 + word.size() + end.size() <= width;
    if (is_first) {
      out += word;
      used += word.size();
    } else if (fits) {
      out += ' ' + word;
      used += 1 + word.size();
    } else {
      out += fmt::format("{}\n{:{}}{}", end, "", indent, word);
      used = indent + word.size();
    }
  }
  return out;
}

/// An example of a footer, "  kvarena ...    what it does", whose parts are split where it is too
/// long.
std::string example_lines(const std::string& line, std::size_t width) {
  const auto begin = line.find_first_not_of(' ');
  const auto gap = line.find("  ", begin);
  const bool is_command = std::string_view(line).substr(begin).starts_with("kvarena ");
  const std::string_view left = std::string_view(line).substr(begin, gap - begin);
  std::string out(begin, ' ');
  std::string parts(left);
  for (auto at = parts.find(" --"); is_command && at != std::string::npos;
       at = parts.find(" --", at + 1)) {
    const auto value = parts.find(' ', at + 1);  // an option and its value stay on one line
    if (value < parts.size() - 1 && parts[value + 1] != '-') parts[value] = kGlue;
  }
  parts = wrapped(parts, begin, kExampleIndent, width, is_command ? " \\" : "");
  std::ranges::replace(parts, kGlue, ' ');
  out += parts + '\n';
  if (gap == std::string::npos) return out;
  return out + std::string(kExampleIndent, ' ') +
         wrapped(std::string_view(line).substr(gap), kExampleIndent, kExampleIndent, width) + '\n';
}

/// Paragraphs are filled again; of examples, which are indented, long lines are split, and with one
/// all of those that have a text beside them.
std::string footer_text(const std::string& footer, std::size_t width) {
  std::vector<std::string> lines;
  std::istringstream in(footer);
  for (std::string line; std::getline(in, line);) {
    const bool continues = !line.empty() && line[0] != ' ' && !lines.empty() &&
                           !lines.back().empty() && lines.back()[0] != ' ' &&
                           !lines.back().ends_with(':');
    if (continues) {
      lines.back() += ' ' + line;
    } else {
      lines.push_back(line);
    }
  }
  const auto is_long = [&](const std::string& line) {
    return line.starts_with(' ') && line.size() > width;
  };
  const bool is_split = std::any_of(lines.begin(), lines.end(), is_long);
  std::string out;
  for (const std::string& line : lines) {
    const auto begin = std::min(line.find_first_not_of(' '), line.size());
    const bool has_gap = begin > 0 && line.find("  ", begin) != std::string::npos;
    if (is_long(line) || (is_split && has_gap)) {
      out += example_lines(line, width);
    } else {
      out += (begin > 0 ? line : wrapped(line, 0, 0, width)) + '\n';
    }
  }
  return out;
}

/// The same in a help, with the default.
std::string value_word(const CLI::Option& option) {
  if (!option.get_option_text().empty()) return " " + option.get_option_text();
  if (option.get_expected_max() == 0) return {};
  std::string word = type_word(option);
  const bool is_list = option.get_expected_max() == CLI::detail::expected_max_vector_size;
  if (is_list && !word.ends_with("]")) word += " ...";
  if (!option.get_default_str().empty()) word += "=" + option.get_default_str();
  if (option.get_required()) word += " (required)";
  return word.empty() ? word : " " + word;
}

std::string names_of(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, " "));
}

/// The options that `option` excludes, without those that nearly no option goes with.
std::set<CLI::Option*> listed_excludes(const CLI::Option& option) {
  const auto is_lonely = [](const CLI::Option* one) {
    return one->get_excludes().size() >= kManyExcludes;
  };
  std::set<CLI::Option*> listed = option.get_excludes();
  if (is_lonely(&option)) listed.clear();
  std::erase_if(listed, is_lonely);
  return listed;
}

/// Its description, the range that a validator names, and which options it needs and excludes.
std::string description_of(const CLI::Option& option) {
  std::string text = option.get_description();
  const std::string type = option.get_type_name();
  const auto range = type.find(" in [");
  if (range != std::string::npos) {
    const auto begin = range + 5;
    text += fmt::format(" ({})", type.substr(begin, type.find(']', begin) - begin));
  }
  if (!option.get_needs().empty()) text += fmt::format(" (needs {})", names_of(option.get_needs()));
  const std::set<CLI::Option*> excluded = listed_excludes(option);
  if (!excluded.empty()) text += fmt::format(" (not with {})", names_of(excluded));
  return text;
}

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(std::size_t width) : width_(width) {}

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    return entry(make_option_name(option, is_positional) + value_word(*option),
                 description_of(*option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_name(), command->get_description());
  }
  std::string make_description(const CLI::App* command) const override {
    return wrapped(command->get_description(), 0, 0, width_) + '\n';
  }
  std::string make_help(const CLI::App* command, std::string name,
                        CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(command, std::move(name), mode);
    for (std::size_t at = 0; (at = text.find("\n\n\n", at)) != std::string::npos;)
      text.erase(at, 1);
    return text;
  }
  std::string make_footer(const CLI::App* command) const override {
    return footer_text(command->get_footer(), width_);
  }

 private:
  std::string entry(const std::string& left, const std::string& text) const {
    const std::size_t column = width_ < kNarrow ? kNarrowColumn : kTextColumn;
    std::string out = "  " + wrapped(left, 2, kNarrowColumn, width_);
    if (out.size() + 2 > column) {
      out += fmt::format("\n{:{}}", "", column);
    } else {
      out += std::string(column - out.size(), ' ');
    }
    return out + wrapped(text, column, column, width_) + '\n';
  }

  std::size_t width_;
};

bool is_shown(const CLI::App* command) { return !command->get_group().empty(); }

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* inner : command.get_subcommands(is_shown))
    names.push_back(inner->get_name());
  return names;
}

/// The options that may stand behind a command, with their dashes.
std::vector<std::string> option_names(const CLI::App* command) {
  std::vector<std::string> names;
  for (; command != nullptr; command = command->get_parent()) {
    for (const CLI::Option* option : command->get_options()) {
      if (option->get_group().empty()) continue;
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

/// The words that nothing has taken.
std::vector<std::string> left_over_of(const CLI::App& command) {
  std::vector<std::string> words = command.remaining();
  for (const CLI::App* inner : command.get_subcommands()) {
    std::ranges::copy(left_over_of(*inner), std::back_inserter(words));
  }
  return words;
}

bool is_option(const std::string& word) { return word.starts_with('-') && word.size() > 1; }

/// A word that nothing takes.
Finding unexpected(const CLI::App& command, const std::string& word) {
  const std::vector<std::string> commands = command_names(command);
  const std::vector<std::string> names = is_option(word) ? option_names(&command) : commands;
  const std::string name = word.substr(0, word.find('='));
  Finding finding;
  if (is_option(word)) {
    finding.found = fmt::format("{} is no option of '{}'", printable(name), words_of(command));
  } else if (commands.empty()) {
    finding.found = fmt::format("'{}' takes no further \"{}\"", words_of(command), printable(word));
  } else {
    finding.found = fmt::format("'{} {}' is no command", words_of(command), printable(word));
    finding.expected = fmt::format("one of {}", fmt::join(commands, ", "));
  }
  const std::string nearest = nearest_name(name, names);
  if (nearest == name) {  // it stands before the command
    finding.found = fmt::format("{} stands before '{}'", printable(name), command.get_name());
    finding.expected = "the options of a command behind it";
  } else if (!nearest.empty())
    finding.advice = fmt::format("did you mean {}? ", nearest);
  return finding;
}

}  // namespace

std::shared_ptr<CLI::Formatter> make_help_formatter(std::size_t width) {
  return std::make_shared<HelpFormatter>(width);
}

std::string type_word(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return "true|false";
  std::string word = option.get_type_name();
  for (const char* added : {":{", ":FLOAT in [", ":INT in ["}) {  // by CLI11's validators
    word.resize(std::min(word.size(), word.find(added)));
  }
  return word;
}

const CLI::App& chosen_command(const CLI::App& root) {
  const CLI::App* command = &root;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
  return *command;
}

std::string words_of(const CLI::App& command) {
  if (command.get_parent() == nullptr) return command.get_name();
  return words_of(*command.get_parent()) + " " + command.get_name();
}

Finding usage_finding(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App& command = chosen_command(root);
  const std::vector<std::string> left_over = left_over_of(root);
  const std::vector<std::string> names = command_names(command);
  const auto is = [&error](CLI::ExitCodes code) {  // its name may be the command's
    return error.get_exit_code() == static_cast<int>(code);
  };
  const bool is_missing = is(CLI::ExitCodes::RequiredError);
  const bool is_extra = is(CLI::ExitCodes::ExtrasError);
  const auto option = std::ranges::find_if(left_over, is_option);
  const bool is_command = !names.empty() || option == left_over.end();  // that is wrong
  const auto first = is_command ? left_over.begin() : option;
  Finding finding{.found = error.what()};
  constexpr std::string_view kExpected = "; expected ";  // as refusal_text has it
  if (const auto at = finding.found.find(kExpected); at != std::string::npos) {
    finding.expected = finding.found.substr(at + kExpected.size());
    finding.found.resize(at);
  }
  if (!left_over.empty() && (is_missing || is_extra)) {
    finding = unexpected(command, *first);
  } else if (is_missing && !names.empty()) {
    finding = {.found = fmt::format("'{}' needs a command", words_of(command)),
               .expected = fmt::format("one of {}", fmt::join(names, ", "))};
  }
  finding.advice += fmt::format("'{} --help' lists the {} with examples", words_of(command),
                                names.empty() ? "options" : "commands");
  return finding;
}

}  // namespace kvarena::tools
