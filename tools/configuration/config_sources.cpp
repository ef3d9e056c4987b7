#include "tools/configuration/config_sources.hpp"

#include "base/excerpt.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <system_error>

namespace kvarena::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "KVARENA_";

/// The folder of users' settings; empty where there is none.
fs::path user_config_folder() {
  // NOLINTBEGIN(concurrency-mt-unsafe): one thread yet
  const char* xdg = std::getenv("XDG_CONFIG_HOME");
  if (xdg != nullptr && fs::path(xdg).is_absolute()) return xdg;
  const char* home = std::getenv("HOME");
  // NOLINTEND(concurrency-mt-unsafe)
  if (home != nullptr && fs::path(home).is_absolute()) return fs::path(home) / ".config";
  return {};
}

/// Why `user` should not trust a file or folder, which is called `name`; empty: there is no reason.
std::string distrust(const fs::path& path, const std::string& name, ::uid_t user) {
  struct ::stat status {};
  if (::stat(path.c_str(), &status) != 0) return "nobody knows whose " + name + " is";
  if (status.st_uid != user && status.st_uid != 0) {
    return fmt::format("{} belongs to another user ({})", name, status.st_uid);
  }
  return (status.st_mode & S_IWOTH) == 0 ? "" : "everybody may write to " + name;
}

/// Whether `file` is there and `user` may trust it.
bool is_usable(const fs::path& file, ::uid_t user, std::vector<std::string>& warnings) {
  std::error_code absent;
  if (!fs::is_regular_file(file, absent)) return false;
  std::string reason = distrust(file, "it", user);
  const fs::path folder = file.parent_path();
  if (reason.empty()) reason = distrust(folder, folder.string(), user);
  if (reason.empty() && ::access(file.c_str(), R_OK) != 0) reason = "it cannot be read";
  if (reason.empty()) return true;
  warnings.push_back(printable(fmt::format("{} is passed over: {}; name it with --config to use it",
                                           file.string(), reason)));
  return false;
}

}  // namespace

ConfigSources ConfigSources::of_process() {
  ConfigSources sources;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const auto equals = text.find('=');
    if (!text.starts_with(kPrefix) || equals == std::string_view::npos) continue;
    sources.environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  std::error_code unknown;
  sources.folder = fs::current_path(unknown);
  const fs::path folder = user_config_folder();
  if (!folder.empty()) sources.user_file = folder / "kvarena" / kConfigFileName;
  return sources;
}

std::optional<std::string> ConfigSources::variable(const std::string& name) const {
  const auto found = environment.find(name);
  if (found == environment.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

FoundConfig find_config_files(const ConfigSources& sources) {
  FoundConfig found;
  for (fs::path folder = sources.folder; !folder.empty(); folder = folder.parent_path()) {
    if (is_usable(folder / kConfigFileName, sources.user, found.project_warnings)) {
      found.project = folder / kConfigFileName;
      break;
    }
    if (folder == folder.parent_path()) break;
  }
  if (!sources.user_file.empty() && sources.user_file != found.project &&
      is_usable(sources.user_file, sources.user, found.user_warnings)) {
    found.user = sources.user_file;
  }
  return found;
}

}  // namespace kvarena::tools
