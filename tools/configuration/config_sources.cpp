#include "tools/configuration/config_sources.hpp"

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

bool everybody_may_write(const fs::path& path) {
  std::error_code unknown;
  const fs::perms permissions = fs::status(path, unknown).permissions();
  return unknown || (permissions & fs::perms::others_write) != fs::perms::none;
}

/// Whether `file` is there and may be trusted.
bool is_usable(const fs::path& file, std::vector<std::string>& warnings) {
  std::error_code absent;
  if (!fs::is_regular_file(file, absent)) return false;
  const fs::path folder = file.parent_path();
  if (!everybody_may_write(file) && !everybody_may_write(folder)) return true;
  warnings.push_back(file.string() + " is passed over: everybody may write to " +
                     (everybody_may_write(file) ? "it" : folder.string()) +
                     "; name it with --config to use it");
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
    if (is_usable(folder / kConfigFileName, found.warnings)) {
      found.project = folder / kConfigFileName;
      break;
    }
    if (folder == folder.parent_path()) break;
  }
  if (!sources.user_file.empty() && sources.user_file != found.project &&
      is_usable(sources.user_file, found.warnings)) {
    found.user = sources.user_file;
  }
  return found;
}

}  // namespace kvarena::tools
