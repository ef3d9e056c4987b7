#pragma once

/// @file
/// A folder tree with configuration files, gone at the end of the test, and the command run in it.

#include "unit/tools/command_run.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvarena::tools {

/// `work` is the current directory of commands, `home` where the user's file is.
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
  /// Writes the project's kvarena.toml; its path.
  std::string project(std::string_view text) const { return write("work/kvarena.toml", text); }
  /// Runs the command in this world.
  Outcome run(std::vector<std::string> arguments) const {
    return tools::run(std::move(arguments), false, sources);
  }

  ConfigSources sources;

 private:
  std::filesystem::path root_;
};

}  // namespace kvarena::tools
