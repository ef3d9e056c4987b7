#pragma once

/// @file
/// The texts about the command line: the help, wrapped for the terminal, and messages about a wrong
/// command line with a suggestion for a misspelled word. Pure functions of the declared commands.

#include "base/finding.hpp"

#include <cstddef>
#include <memory>
#include <string>

namespace CLI {
class App;
class Formatter;
class Option;
class ParseError;
}  // namespace CLI

namespace kvarena::tools {

/// Writes helps of at most `width` characters a line, but for words that are longer.
std::shared_ptr<CLI::Formatter> make_help_formatter(std::size_t width);

/// The command chosen: the innermost one.
const CLI::App& chosen_command(const CLI::App& root);

/// "kvarena bench attention".
std::string words_of(const CLI::App& command);

/// What an option takes, "N", "step|linear", "true|false" of one without a value.
std::string type_word(const CLI::Option& option);

/// Returns what is wrong with the command line that `root` has refused.
Finding usage_finding(const CLI::App& root, const CLI::ParseError& error);

}  // namespace kvarena::tools
