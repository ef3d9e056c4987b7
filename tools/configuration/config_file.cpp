#include "tools/configuration/configuration.hpp"

#include "base/excerpt.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

namespace kvarena::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// One line, or the lines of an array, without comments. All strings are JSON strings; TOML's
/// strings in double quotes already are.
struct Line {
  std::string text;
  int open_brackets = 0;  // '[' without their ']'
};

/// Adds a line as JSON has it.
void add(Line& line, std::string_view raw) {
  if (!line.text.empty()) line.text += ' ';
  for (std::size_t at = 0; at < raw.size(); ++at) {
    const char c = raw[at];
    if (c == '#') break;
    if (c == '\'') {
      const auto end = std::min(raw.find('\'', at + 1), raw.size());
      line.text += toml_quoted(raw.substr(at + 1, end - at - 1));
      if (end == raw.size()) line.text += '\'';  // it is not closed: no JSON
      at = end;
      continue;
    }
    if (c == ']' && line.text.find_last_not_of(" \t,") + 1 < line.text.size()) {
      line.text.resize(line.text.find_last_not_of(" \t,") + 1);  // TOML's arrays may end in a comma
    }
    line.text += c;
    line.open_brackets += c == '[' ? 1 : c == ']' ? -1 : 0;
    if (c != '"') continue;
    while (++at < raw.size() && raw[at] != '"') {
      line.text += raw[at];
      if (raw[at] == '\\' && at + 1 < raw.size()) line.text += raw[++at];
    }
    if (at < raw.size()) line.text += '"';
  }
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

/// "block-size"; a table's name may have dots within it: "bench.attention".
bool is_name(std::string_view text, bool may_have_dots) {
  constexpr std::string_view kLetters =
      ".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  const std::string_view allowed = kLetters.substr(may_have_dots ? 0 : 1);
  return !text.empty() && text.find_first_not_of(allowed) == text.npos && text.front() != '.' &&
         text.back() != '.';
}

/// The bytes of a file, of one that is too large no more than one byte past the limit.
std::string read_limited(std::istream& file) {
  std::string bytes(kMaxConfigBytes + 1, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

/// A string, number or boolean as a command line has it.
std::string word_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Reads a file line by line.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  std::vector<ConfigEntry> read(std::istream& file) {
    std::istringstream text(read_limited(file));
    if (file.bad()) refuse(1, "bytes that cannot be read");
    if (text.view().size() > kMaxConfigBytes)
      refuse(1, fmt::format("more than {} bytes", kMaxConfigBytes));
    Line line;
    std::uint32_t number = 1;
    std::uint32_t first = 1;
    for (std::string raw; std::getline(text, raw); ++number) {
      if (raw.find('\0') != raw.npos) refuse(number, "a NUL byte");
      if (number == 1 && raw.starts_with("\xef\xbb\xbf")) raw.erase(0, 3);
      if (line.text.empty()) first = number;
      add(line, raw);
      const bool is_table = trimmed(line.text).starts_with('[');
      if (line.open_brackets > 0 && !is_table) continue;  // an array goes on
      take(first, trimmed(line.text));
      line = {};
    }
    if (!line.text.empty()) refuse(first, "an array without its end");
    return std::move(entries_);
  }

 private:
  [[noreturn]] void refuse(
      std::uint32_t line, std::string found, std::string expected = "[table], or key = value",
      std::string advice =
          "strings need quotes, a table is [replay], a comment begins with #") const {
    throw ConfigError(ExitCode::bad_input, {.subject = fmt::format("{}:{}", printable(path_), line),
                                            .found = std::move(found),
                                            .expected = std::move(expected),
                                            .advice = std::move(advice)});
  }

  void take(std::uint32_t line, std::string_view text) {
    if (text.empty()) return;
    if (text.front() == '[') {
      const std::string_view name = trimmed(text.substr(1, text.size() - 2));
      if (text.back() != ']' || !is_name(name, true)) refuse(line, excerpt_of(text));
      table_ = name;
      take_once(line, table_ + "]", "[" + table_ + "]");
      entries_.push_back({table_, "", {}, line});
      return;
    }
    const auto equals = text.find('=');
    const std::string key(trimmed(text.substr(0, equals)));
    if (equals == text.npos || !is_name(key, false)) refuse(line, excerpt_of(text));
    take_once(line, table_ + "." + key, key);
    entries_.push_back({table_, key, values_of(line, trimmed(text.substr(equals + 1))), line});
  }

  void take_once(std::uint32_t line, const std::string& name, const std::string& words) {
    if (seen_.insert(name).second) return;
    refuse(line, words + " a second time", "each table and each key once", "take one of them out");
  }

  std::vector<std::string> values_of(std::uint32_t line, std::string_view text) const {
    const Json value = Json::parse(text, nullptr, false);
    const auto is_scalar = [](const Json& one) {
      return one.is_primitive() && !one.is_null() && !one.is_discarded();
    };
    if (is_scalar(value)) return {word_of(value)};
    if (!value.is_array() || value.empty() || !std::all_of(value.begin(), value.end(), is_scalar)) {
      refuse(line, fmt::format("the value {}", excerpt_of(text)),
             "\"text\" in quotes, a number, true, false, or an array of these");
    }
    std::vector<std::string> values;
    for (const Json& one : value) values.push_back(word_of(one));
    return values;
  }

  const std::string& path_;
  std::string table_;
  std::set<std::string> seen_;
  std::vector<ConfigEntry> entries_;
};

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
  std::error_code error;
  if (!fs::exists(fs::symlink_status(file, error))) return false;
  const bool is_file = fs::is_regular_file(file, error);
  std::string reason = is_file ? distrust(file, "it", user) : "it is no file";
  const fs::path folder = file.parent_path();
  if (reason.empty()) reason = distrust(folder, folder.string(), user);
  if (reason.empty() && ::access(file.c_str(), R_OK) != 0) reason = "it cannot be read";
  if (reason.empty()) return true;
  const char* advice = is_file ? "; name it with --config to use it" : "";
  warnings.push_back(
      printable(fmt::format("{} is passed over: {}{}", file.string(), reason, advice)));
  return false;
}

}  // namespace

std::vector<ConfigEntry> parse_config(std::istream& text, const std::string& path) {
  return Reader(path).read(text);
}

std::string toml_quoted(std::string_view text) {
  // JSON's strings are TOML's, but for DEL; C1 controls for terminals.
  std::string quoted = Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
  for (std::size_t at = 0; (at = quoted.find('\x7f', at)) != std::string::npos;) {
    quoted.replace(at, 1, "\\u007f");
  }
  for (std::size_t at = 0; (at = quoted.find('\xc2', at)) != std::string::npos; ++at) {
    const auto code = static_cast<unsigned char>(quoted[at + 1]);  // U+0080 to U+00BF
    if (code < 0xa0) quoted.replace(at, 2, fmt::format("\\u{:04x}", code));
  }
  return quoted;
}

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
