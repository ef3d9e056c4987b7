#pragma once

/// @file
/// The sources of configuration besides the command line. They are injected, so no test depends on
/// the environment and the folders of its user.

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

/// The environment and the files of a process. Empty: only the command line is used.
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

/// Searches for the files, up to the root of the file system. A file is skipped when the file or
/// its folder belongs neither to the user nor to root, or when everybody may write to it. The
/// reason is that a configuration can name files to write. Groups are trusted, because many users
/// have their own group, which may write to all files that they create.
FoundConfig find_config_files(const ConfigSources& sources);

}  // namespace kvarena::tools
