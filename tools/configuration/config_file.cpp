#include "tools/configuration/config_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace kvarena::tools {
namespace {

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

/// "replay", "bench.attention".
bool is_name(std::string_view text) {
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  return !text.empty() && text.find_first_not_of(kLetters) == text.npos && text.front() != '.' &&
         text.back() != '.';
}

/// A string, number or boolean as a command line has it.
std::string word_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

/// Reads a file line by line.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  std::vector<ConfigEntry> read(std::istream& text) {
    std::size_t bytes = 0;
    Line line;
    std::uint32_t number = 1;
    std::uint32_t first = 1;
    for (std::string raw; std::getline(text, raw); ++number) {
      bytes += raw.size() + 1;
      if (bytes > kMaxConfigBytes + 1)
        refuse(number, fmt::format("more than {} bytes", kMaxConfigBytes));
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
      if (text.back() != ']' || !is_name(name)) refuse(line, excerpt_of(text));
      table_ = name;
      take_once(line, table_ + "]", "[" + table_ + "]");
      entries_.push_back({table_, "", {}, line});
      return;
    }
    const auto equals = text.find('=');
    std::string_view key = trimmed(text.substr(0, equals));
    if (equals == text.npos || !is_name(key)) refuse(line, excerpt_of(text));
    std::string table = table_;  // "replay.block-size" is block-size of [replay]
    if (const auto dot = key.rfind('.'); dot != key.npos) {
      table += fmt::format("{}{}", table.empty() ? "" : ".", key.substr(0, dot));
      key.remove_prefix(dot + 1);
    }
    take_once(line, table + "." + std::string(key), std::string(key));
    entries_.push_back(
        {table, std::string(key), values_of(line, trimmed(text.substr(equals + 1))), line});
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

}  // namespace kvarena::tools
