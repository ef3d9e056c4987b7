#pragma once

/// @file
/// `kvarena config show`: prints the value and the source of every option.

#include "tools/configuration/configuration.hpp"
#include "tools/console.hpp"
#include "tools/exit_codes.hpp"

#include <string>
#include <vector>

namespace kvarena::tools {

/// The command's options and its work.
class ConfigCommand {
 public:
  /// Reads `configuration`, which must outlive it.
  explicit ConfigCommand(Configuration& configuration) : configuration_(configuration) {}
  /// Declares `config` with `show` below `parent` and returns it.
  CLI::App* declare(CLI::App& parent);
  /// Prints TOML: configured values as settings, defaults as comments.
  ExitCode run(const Console& console);

 private:
  bool is_chosen(const CommandOption& option) const;
  bool find_table(const Console& console);
  std::string toml() const;
  std::string line_of(const CommandOption& named) const;

  Configuration& configuration_;
  std::vector<std::string> words_;  // of the command whose options are shown
  std::string table_;               // the same as a table; empty: all
  bool origin_ = false;
  std::string json_;
};

}  // namespace kvarena::tools
