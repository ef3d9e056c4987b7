#pragma once

/// @file
/// Values as people write them on a command line and read them in a table, and the options that
/// take such values. An option refuses anything else while the command line is parsed.

#include "base/finding.hpp"
#include "base/grouped.hpp"
#include "tools/console.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvarena::tools {

/// Bytes from "4096", "512KiB", "79.18GiB", "24gb", "80 GB": a decimal number and an optional
/// suffix B, KiB, MiB, GiB, TiB (powers of 1024) or kB, MB, GB, TB (powers of 1000) in any case. A
/// fraction of a byte is dropped, and `is_rounded` says whether there was one. Returns nullopt for
/// any other text and past 2^63 - 1.
std::optional<std::int64_t> parse_bytes(std::string_view text, bool* is_rounded = nullptr);

/// Nanoseconds from microseconds such as "20000", "0.5", with at most three decimals, up to 10^9
/// us.
std::optional<std::int64_t> parse_microseconds(std::string_view text);

/// "1.50 GiB", "512 B": three significant digits or more, for people.
std::string human_bytes(std::int64_t bytes);

using kvarena::grouped;

/// While it lives, options that are added to `command` belong to the group `name` of its help.
class OptionGroup {
 public:
  OptionGroup(CLI::App& command, const std::string& name);
  ~OptionGroup();
  OptionGroup(const OptionGroup&) = delete;
  OptionGroup& operator=(const OptionGroup&) = delete;

 private:
  CLI::App& command_;
  std::string before_;
};

/// What an option's check answers: "" where nothing was found, else what was found and expected.
std::string refusal_text(const Finding& why);

/// A whole number >= 0 in decimal digits; leading zeros mean nothing. Nothing for any other text.
std::optional<std::int64_t> parse_whole_number(std::string_view text);

/// The elements of lists that are separated by commas. Throws CLI::ValidationError, which names
/// `option`, where one is empty.
std::vector<std::string> list_elements(const std::string& option,
                                       const std::vector<std::string>& lists);

/// `--name N`, a whole number `smallest` .. `largest`. The help shows the default when it is such a
/// number; any other stands for "not given".
template <class Number>
CLI::Option* add_count_option(CLI::App& command, const std::string& name, Number& value,
                              std::int64_t smallest, std::int64_t largest, const std::string& help);

/// `--name X`, a number `smallest` .. `largest` in decimal digits; the help shows the default.
CLI::Option* add_number_option(CLI::App& command, const std::string& name, double& value,
                               double smallest, double largest, const std::string& help);

/// `--name CHOICE`, one of `choices`; the help names them and the default.
CLI::Option* add_choice_option(CLI::App& command, const std::string& name, std::string& value,
                               const std::vector<std::string>& choices, const std::string& help);

/// `--name SIZE`, e.g. 24GiB, 512MiB, 80GB; at least `smallest` bytes.
CLI::Option* add_bytes_option(CLI::App& command, const std::string& name,
                              std::optional<std::int64_t>& bytes, const std::string& help,
                              std::int64_t smallest = 1);

/// `--name US`, microseconds with up to three decimals, into nanoseconds; `ns` is the default.
CLI::Option* add_microseconds_option(CLI::App& command, const std::string& name, std::int64_t& ns,
                                     const std::string& help);

/// A host and a port.
struct HttpAddress {
  std::string host;        ///< without brackets
  std::uint16_t port = 0;  ///< as given

  friend bool operator==(const HttpAddress&, const HttpAddress&) = default;
};

/// "127.0.0.1:15858", "localhost:0", "[::1]:15858"; nothing for anything else.
std::optional<HttpAddress> parse_http_address(std::string_view text);
/// "http://HOST:PORT" or "https://HOST[:PORT]" (443), without the slash that may be behind; nothing
/// for anything else.
std::optional<std::string> parse_http_url(std::string_view text);
/// Returns the first line of a file that other users cannot read or write; "" for an empty path. On
/// failure reports it on the console and returns nothing.
std::optional<std::string> read_token(const Console& console, const std::string& path);

}  // namespace kvarena::tools
