#pragma once

/// @file
/// The options of all commands as a configuration names them. Read off the declared commands: a new
/// command or option is in it by itself. `CLI::Option::configurable(false)` keeps one out.

#include "tools/configuration/config_file.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
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

/// What an option takes, by the word for its value in the help: N is a whole number, SIZE a string
/// or a whole number, FILE a string, one without a value a boolean, and so on.
struct ValueForm {
  bool boolean = false;
  bool integer = false;
  bool real = false;
  bool text = false;
  bool list = false;
  bool is_joined = false;  ///< a list is one value, with commas between its items
  std::string word{};      ///< of the help

  /// The form of an option's value.
  static ValueForm of(const CLI::Option& option);
  /// Whether a value of this kind is one; of a list, each of its items.
  bool takes(ConfigKind kind) const noexcept;
  /// "a string or a whole number (SIZE)".
  std::string description() const;
};

/// A command, for its names.
struct CommandName {
  CLI::App* command = nullptr;
  std::string table{};   ///< "bench.attention"; empty: the root
  std::string prefix{};  ///< "KVARENA_BENCH_ATTENTION_"
};

/// All commands and options below a root, but for hidden ones, in the order in which they are
/// declared.
struct OptionSchema {
  std::vector<CommandName> commands{};
  std::vector<CommandOption> options{};

  /// Walks the commands.
  static OptionSchema of(CLI::App& root);
  /// The command of a table, or null.
  const CommandName* find_command(std::string_view table) const;
  /// The option, or null.
  const CommandOption* find(std::string_view table, std::string_view key) const;
  /// The option of a variable, or null.
  const CommandOption* find_variable(std::string_view variable) const;
  /// The command whose variables begin as `variable` does, the longest one; null: it is none of
  /// ours. Never the root, whose prefix others use too.
  const CommandName* command_of_variable(std::string_view variable) const;
};

/// "kvarena bench attention" of "bench.attention".
std::string command_words(std::string_view table);

}  // namespace kvarena::tools
