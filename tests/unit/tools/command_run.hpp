#pragma once

/// @file
/// The command in this process, its two streams as strings.

#include "tools/command_line.hpp"

#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {

/// What the command printed and returned.
struct Outcome {
  ExitCode code = ExitCode::environment;
  std::string out;
  std::string err;
};

/// Runs the command in this process; of the environment and the folders around it, it sees
/// `sources` alone.
inline Outcome run(std::vector<std::string> arguments, bool terminal = false,
                   const ConfigSources& sources = {}) {
  std::vector<const char*> argv{"kvarena"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  std::ostringstream out;
  std::ostringstream err;
  Console console{out, err};
  console.out_is_terminal = console.err_is_terminal = terminal;
  const ExitCode code =
      run_command_line(static_cast<int>(argv.size()), argv.data(), console, sources);
  return {code, out.str(), err.str()};
}

/// The words of a line, separated by spaces.
inline std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Whether `text` has `part` in it.
inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace kvarena::tools
