#include "tools/configuration/config_file.hpp"

#include "tools/configuration/config_error.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <system_error>

namespace {

/// toml++ came to where it cannot go on.
struct TomlAssertion {};

[[noreturn]] void fail_toml_assertion() { throw TomlAssertion{}; }

}  // namespace

// toml++ 3.3 asserts what it has not checked ("[[[" is enough), and in optimised builds assumes it:
// its assertions stay, as exceptions. Where it asks of a letter such as U+00E9 whether it is a
// space or part of a key, it comes to what it calls unreachable: the answer is no.
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) ((expr) ? static_cast<void>(0) : fail_toml_assertion())
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_MAX_NESTED_VALUES 16
// clang-format off
#include <toml++/impl/forward_declarations.h>
#undef TOML_UNREACHABLE
#define TOML_UNREACHABLE return false
#include <toml++/impl/unicode.h>
#undef TOML_UNREACHABLE
#define TOML_UNREACHABLE fail_toml_assertion()
#include <toml++/toml.h>
// clang-format on
#pragma pop_macro("NDEBUG")

namespace kvarena::tools {
namespace {

static_assert(kMaxConfigDepth == TOML_MAX_NESTED_VALUES);

ConfigPlace begin_of(const toml::source_region& region) {
  return {region.begin.line, region.begin.column};
}

std::string text_of(const std::string& path, const ConfigPlace& place) {
  return fmt::format("{}:{}:{}", path, place.line, place.column);
}

ConfigError bad_file(const std::string& where, std::string_view happened, std::string expected,
                     std::string advice) {
  return {ExitCode::bad_input, fmt::format("{}: {}", where, happened), std::move(expected),
          std::move(advice)};
}

/// toml++ limits how deep values nest, but not how many parts a key has; each is a table inside the
/// last, and tables are destroyed recursively.
void limit_dots(std::string_view text, const std::string& path) {
  std::uint32_t line = 1;
  std::size_t dots = 0;
  for (const char c : text) {
    if (c == '\n') {
      ++line;
      dots = 0;
    } else if (c == '.' && ++dots > kMaxConfigDots) {
      throw bad_file(fmt::format("{}:{}", path, line),
                     fmt::format("more than {} dots in a line", kMaxConfigDots),
                     "keys of a few parts, such as bench.attention.batch", "break the line");
    }
  }
}

toml::parse_result parse_toml(std::string_view text, const std::string& path) {
  constexpr const char* kToml = "TOML 1.0 (https://toml.io)";
  try {
    toml::parse_result result = toml::parse(text);
    if (result) return result;
    throw bad_file(text_of(path, begin_of(result.error().source())), result.error().description(),
                   kToml,
                   "correct the line; strings need quotes, a table is [replay], a comment begins "
                   "with #");
  } catch (const TomlAssertion&) {
    throw bad_file(path, "something in brackets or quotes is no TOML", kToml,
                   "look for lines that begin with [[[ and the like");
  }
}

ConfigValue value_of(const toml::node& node) {
  ConfigValue value{.place = begin_of(node.source())};
  if (const auto* boolean = node.as_boolean()) {
    value.kind = ConfigKind::boolean;
    value.text = boolean->get() ? "true" : "false";
  } else if (const auto* integer = node.as_integer()) {
    value.kind = ConfigKind::integer;
    value.text = fmt::format("{}", integer->get());
  } else if (const auto* real = node.as_floating_point()) {
    value.kind = ConfigKind::real;
    value.text = fmt::format("{}", real->get());
  } else if (const auto* text = node.as_string()) {
    value.kind = ConfigKind::text;
    value.text = text->get();
  } else if (const auto* list = node.as_array()) {
    value.kind = ConfigKind::list;
    for (const toml::node& item : *list) value.items.push_back(value_of(item));
  } else if (!node.is_table()) {
    value.kind = ConfigKind::time;
  }
  return value;
}

/// The first key or string that is too long.
std::optional<ConfigPlace> too_long(const ConfigEntry& entry) {
  if (entry.path.back().size() > kMaxConfigText) return entry.place;
  const auto is_long = [](const ConfigValue& value) { return value.text.size() > kMaxConfigText; };
  if (is_long(entry.value)) return entry.value.place;
  const auto& items = entry.value.items;
  const auto item = std::find_if(items.begin(), items.end(), is_long);
  return item == items.end() ? std::nullopt : std::optional(item->place);
}

/// Adds what `table` holds. `parents` are its own names; `path` is named in errors.
void add_entries(const toml::table& table, std::vector<std::string>& parents,
                 const std::string& path, std::vector<ConfigEntry>& entries) {
  for (const auto& [key, node] : table) {
    const ConfigPlace place = begin_of(key.source());
    if (entries.size() == kMaxConfigEntries) {
      throw bad_file(path, fmt::format("more than {} keys and tables", kMaxConfigEntries),
                     "a file of settings", "name another file, or take something out of it");
    }
    if (parents.size() == kMaxConfigParts) {
      throw bad_file(text_of(path, place),
                     fmt::format("a key of more than {} parts", kMaxConfigParts),
                     "keys of a few parts, such as bench.attention.batch", "take it out");
    }
    parents.emplace_back(key.str());
    entries.push_back({parents, place, value_of(node)});
    if (const auto* inner = node.as_table()) add_entries(*inner, parents, path, entries);
    parents.pop_back();
  }
}

}  // namespace

std::vector<ConfigEntry> parse_config(std::string_view text, const std::string& path) {
  if (text.size() > kMaxConfigBytes) {
    throw bad_file(path, fmt::format("more than {} bytes", kMaxConfigBytes), "a file of settings",
                   "name another file, or take something out of it");
  }
  limit_dots(text, path);
  const toml::parse_result result = parse_toml(text, path);
  std::vector<ConfigEntry> entries;
  std::vector<std::string> parents;
  add_entries(result.table(), parents, path, entries);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.place < b.place; });
  for (const ConfigEntry& entry : entries) {
    if (const auto place = too_long(entry)) {
      throw bad_file(text_of(path, *place), fmt::format("more than {} bytes", kMaxConfigText),
                     "keys and strings of a setting", "take it out");
    }
  }
  return entries;
}

std::string read_config_file(const std::filesystem::path& path) {
  const auto refuse = [&](const std::string& why) {
    return bad_file(path.string(), why, "a TOML file that can be read",
                    "check the name and the permissions, or use --no-config");
  };
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) throw refuse("is a directory");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw refuse(std::generic_category().message(errno));
  std::string text(kMaxConfigBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) throw refuse(std::generic_category().message(errno));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

std::string toml_quoted(std::string_view text) {
  using Json = nlohmann::json;  // JSON's strings are TOML's, but for DEL; C1 controls for terminals
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

}  // namespace kvarena::tools
