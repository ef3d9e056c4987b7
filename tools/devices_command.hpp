#pragma once

/// @file
/// `kvarena devices`: the host and each GPU with its memory, or why there is no GPU.

#include "tools/console.hpp"
#include "tools/exit_codes.hpp"

#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// The command's options and its work.
class DevicesCommand {
 public:
  /// Declares the command below `parent` and returns it.
  CLI::App* declare(CLI::App& parent);
  /// Prints the table. No GPU is no failure.
  ExitCode run(const Console& console) const;

 private:
  std::string json_;
  const CLI::Option* json_option_ = nullptr;  // may be given without a value: standard output
};

}  // namespace kvarena::tools
