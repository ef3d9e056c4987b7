#pragma once

/// @file
/// Where configuration comes from besides the command line. Injected, so that no test depends on
/// the environment and the folders of whoever runs it.

#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace kvarena::tools {

/// The name that is searched for.
inline constexpr const char* kConfigFileName = "kvarena.toml";

/// What a process finds around it. Empty: nothing but the command line.
struct ConfigSources {
  std::map<std::string, std::string> environment{};  ///< variables named KVARENA_...
  std::filesystem::path folder{};     ///< where the search begins; empty: there is none
  std::filesystem::path user_file{};  ///< the user's own file, which may not exist; empty: none
  ::uid_t user = ::geteuid();         ///< whose files are trusted, besides root's

  /// Those of this process: its environment, current directory and
  /// $XDG_CONFIG_HOME/kvarena/kvarena.toml, or else ~/.config/kvarena/kvarena.toml.
  static ConfigSources of_process();

  /// The variable's value; nothing where it is empty or not set.
  std::optional<std::string> variable(const std::string& name) const;
};

/// The files that nobody named.
struct FoundConfig {
  std::filesystem::path project{};  ///< kvarena.toml of the folder or its nearest parent
  std::filesystem::path user{};     ///< the user's; empty where it is the project's
  std::vector<std::string> project_warnings{};  ///< what was passed over on the way, and why
  std::vector<std::string> user_warnings{};     ///< likewise of the user's
};

/// Looks for them, up to the root of the file system. A file is passed over, since it could name
/// files to write, where it or its folder belongs neither to the user nor to root, or where
/// everybody may write to it. Groups are trusted: many users have one of their own, which may write
/// to all that they create.
FoundConfig find_config_files(const ConfigSources& sources);

}  // namespace kvarena::tools
