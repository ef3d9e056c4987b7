#pragma once

/// @file
/// The command in this process, its two streams as strings, and a folder tree to run it in.

#include "tools/command_line.hpp"

#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::tools {

/// A console whose streams are strings.
struct TestConsole {
  std::ostringstream out;
  std::ostringstream err;
  Console console{out, err};
};

/// What the command printed and returned.
struct Outcome {
  ExitCode code = ExitCode::environment;
  std::string out;
  std::string err;
};

/// Runs the command on this console; of the environment and the folders around it, it sees
/// `sources` alone.
inline ExitCode run_on(Console& console, const std::vector<std::string>& arguments,
                       const ConfigSources& sources = {}) {
  std::vector<const char*> argv{"kvarena"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  return run_command_line(static_cast<int>(argv.size()), argv.data(), console, sources);
}

/// Runs the command.
inline Outcome run(const std::vector<std::string>& arguments, bool terminal = false,
                   const ConfigSources& sources = {}) {
  TestConsole test;
  test.console.out_is_terminal = test.console.err_is_terminal = terminal;
  const ExitCode code = run_on(test.console, arguments, sources);
  return {code, test.out.str(), test.err.str()};
}

/// The words of a line, separated by spaces, and `more` behind them.
inline std::vector<std::string> words(const std::string& line,
                                      const std::vector<std::string>& more = {}) {
  std::istringstream in(line);
  std::vector<std::string> all{std::istream_iterator<std::string>(in), {}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Runs the command with the words of a line.
inline Outcome run_line(const std::string& line) { return run(words(line)); }

/// A list of texts.
template <class... Texts>
std::vector<std::string> texts(const Texts&... each) {
  return {each...};
}

/// Whether `text` has `part` in it; a failed expectation shows both.
inline testing::AssertionResult contains(const std::string& text, std::string_view part) {
  const bool has_part = text.find(part) != std::string::npos;
  return (has_part ? testing::AssertionSuccess() : testing::AssertionFailure())
         << "\"" << part << "\" is " << (has_part ? "" : "not ") << "in\n"
         << text;
}

/// Whether `text` has all `parts`; a failed expectation shows those that are not there.
inline testing::AssertionResult contains_all(const std::string& text,
                                             std::initializer_list<std::string_view> parts) {
  std::string missing;
  for (const std::string_view part : parts) {
    if (!contains(text, part)) missing += "\"" + std::string(part) + "\" is not in\n";
  }
  return missing.empty() ? testing::AssertionSuccess()
                         : testing::AssertionFailure() << missing << text;
}

/// Whether the command ended with `code` and said all `parts` on standard error.
inline testing::AssertionResult ended(const Outcome& seen, ExitCode code,
                                      std::initializer_list<std::string_view> parts) {
  if (seen.code == code) return contains_all(seen.err, parts);
  return testing::AssertionFailure() << "exit code " << static_cast<int>(seen.code) << ", not "
                                     << static_cast<int>(code) << ":\n"
                                     << seen.err;
}

/// The JSON object that a command printed that has to succeed; an empty one when it failed.
inline nlohmann::json parsed(const Outcome& seen) {
  EXPECT_EQ(seen.code, ExitCode::ok) << seen.err;
  return seen.code == ExitCode::ok ? nlohmann::json::parse(seen.out) : nlohmann::json::object();
}

/// A folder tree with configuration files, gone at the end of the test. `work` is the current
/// directory of commands, `home` where the user's file is.
class ConfigWorld {
 public:
  ConfigWorld() {
    static int number = 0;
    root_ = std::filesystem::temp_directory_path() /
            ("kvarena-config-" + std::to_string(::getpid()) + "-" + std::to_string(number++));
    std::filesystem::create_directories(root_ / "work/inner");
    std::filesystem::create_directories(root_ / "home/kvarena");
    sources.folder = root_ / "work";
    sources.user_file = root_ / "home/kvarena/kvarena.toml";
  }
  ~ConfigWorld() { std::filesystem::remove_all(root_); }
  ConfigWorld(const ConfigWorld&) = delete;
  ConfigWorld& operator=(const ConfigWorld&) = delete;

  std::string path(std::string_view name) const { return (root_ / name).string(); }
  /// Writes `text` to the file `name` below the root; its path.
  std::string write(std::string_view name, std::string_view text) const {
    std::ofstream(root_ / name, std::ios::binary) << text;
    return path(name);
  }
  /// The bytes of the file `name` below the root.
  std::string read(std::string_view name) const {
    std::ifstream in(root_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Writes the project's kvarena.toml; its path.
  std::string project(std::string_view text) const { return write("work/kvarena.toml", text); }
  /// Runs the command in this world.
  Outcome run(const std::vector<std::string>& arguments) const {
    return tools::run(arguments, false, sources);
  }

  ConfigSources sources;

 private:
  std::filesystem::path root_;
};

}  // namespace kvarena::tools
