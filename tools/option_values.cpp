#include "tools/option_values.hpp"

#include "base/excerpt.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <fstream>
#include <utility>

namespace kvarena::tools {
namespace {

__extension__ using Wide = __int128;

struct Decimal {
  Wide digits = 0;         // the number times 10^places
  std::int64_t scale = 1;  // 10^places
  std::string_view rest;   // behind the number
};

// At most 19 digits before the point and 9 behind it.
std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal number;
  std::size_t i = 0;
  std::size_t whole = 0;
  bool fraction = false;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !fraction && whole > 0) {
      fraction = true;
      continue;
    }
    if (c < '0' || c > '9') break;
    number.digits = number.digits * 10 + (c - '0');
    if (fraction) {
      number.scale *= 10;
    } else {
      ++whole;
    }
    if (whole > 19 || number.scale > 1'000'000'000) return std::nullopt;
  }
  if (whole == 0 || (fraction && number.scale == 1)) return std::nullopt;
  number.rest = text.substr(i);
  return number;
}

constexpr std::size_t kMaxTokenBytes = 4096;  // servers take less

constexpr std::array<std::pair<std::string_view, std::int64_t>, 10> kByteUnits{{
    {"", 1},
    {"b", 1},
    {"kb", 1'000},
    {"mb", 1'000'000},
    {"gb", 1'000'000'000},
    {"tb", 1'000'000'000'000},
    {"kib", std::int64_t{1} << 10},
    {"mib", std::int64_t{1} << 20},
    {"gib", std::int64_t{1} << 30},
    {"tib", std::int64_t{1} << 40},
}};

}  // namespace

std::optional<std::int64_t> parse_bytes(std::string_view text, bool* is_rounded) {
  auto number = parse_decimal(text);
  if (!number) return std::nullopt;
  std::string unit(number->rest);
  if (unit.size() > 1 && unit.front() == ' ') unit.erase(0, 1);
  std::ranges::transform(unit, unit.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const auto& [name, factor] : kByteUnits) {
    if (name != unit) continue;
    Wide scaled = 0;
    if (__builtin_mul_overflow(number->digits, Wide{factor}, &scaled)) return std::nullopt;
    if (is_rounded != nullptr) *is_rounded = scaled % number->scale != 0;
    const Wide bytes = scaled / number->scale;
    if (bytes > INT64_MAX) return std::nullopt;
    return static_cast<std::int64_t>(bytes);
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_microseconds(std::string_view text) {
  const auto number = parse_decimal(text);
  if (!number || !number->rest.empty() || number->scale > 1000) return std::nullopt;
  const Wide ns = number->digits * (1000 / number->scale);
  if (ns > Wide{1'000'000'000} * 1000) return std::nullopt;
  return static_cast<std::int64_t>(ns);
}

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

OptionGroup::OptionGroup(CLI::App& command, const std::string& name)
    : command_(command), before_(command.option_defaults()->get_group()) {
  command.option_defaults()->group(name);
}

OptionGroup::~OptionGroup() { command_.option_defaults()->group(before_); }

std::string refusal_text(const Finding& why) {
  return why.is_empty() ? "" : fmt::format("{}; expected {}", why.found, why.expected);
}

std::optional<std::int64_t> parse_whole_number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

std::vector<std::string> list_elements(const std::string& option,
                                       const std::vector<std::string>& lists) {
  std::vector<std::string> elements;
  for (const std::string& list : lists) {
    for (std::size_t at = 0; at <= list.size();) {
      const std::size_t end = std::min(list.find(',', at), list.size());
      elements.push_back(list.substr(at, end - at));
      if (end == at)
        throw CLI::ValidationError(
            option, refusal_text({.found = "an empty name or number",
                                  .expected = "elements with one comma between them"}));
      at = end + 1;
    }
  }
  return elements;
}

template <class Number>
CLI::Option* add_count_option(CLI::App& command, const std::string& name, Number& value,
                              std::int64_t smallest, std::int64_t largest,
                              const std::string& help) {
  CLI::Option* option = command.add_option(name, value, help);
  if (value >= smallest) option->capture_default_str();
  // CLI11 reads numbers as C does, 010 as 8: it gets them without leading zeros.
  const auto in_range = [smallest, largest](std::string& text) {
    const auto number = parse_whole_number(text);
    if (!number || *number < smallest || *number > largest) {
      return fmt::format("Value {} not in range {} to {}", printable(text), smallest, largest);
    }
    text = fmt::format("{}", *number);
    return std::string();
  };
  return option->type_name("N")->transform(CLI::Validator(in_range, ""));
}

template CLI::Option* add_count_option(CLI::App&, const std::string&, std::int32_t&, std::int64_t,
                                       std::int64_t, const std::string&);
template CLI::Option* add_count_option(CLI::App&, const std::string&, std::int64_t&, std::int64_t,
                                       std::int64_t, const std::string&);
template CLI::Option* add_count_option(CLI::App&, const std::string&, std::optional<std::int64_t>&,
                                       std::int64_t, std::int64_t, const std::string&);

CLI::Option* add_number_option(CLI::App& command, const std::string& name, double& value,
                               double smallest, double largest, const std::string& help) {
  const auto in_range = [smallest, largest](std::string& text) {
    double number = 0.0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_number = error == std::errc{} && end == text.data() + text.size();
    if (is_number && number >= smallest && number <= largest) return std::string();  // no NaN
    return refusal_text({.found = fmt::format("\"{}\" is not in the range", printable(text)),
                         .expected = fmt::format("a number {} .. {}", smallest, largest)});
  };
  return command.add_option(name, value, help)
      ->check(CLI::Validator(in_range, fmt::format("FLOAT in [{} - {}]", smallest, largest)))
      ->capture_default_str();
}

CLI::Option* add_choice_option(CLI::App& command, const std::string& name, std::string& value,
                               const std::vector<std::string>& choices, const std::string& help) {
  return command.add_option(name, value, help)
      ->type_name(fmt::format("{}", fmt::join(choices, "|")))
      ->check(CLI::IsMember(choices).description(""))
      ->capture_default_str();
}

CLI::Option* add_bytes_option(CLI::App& command, const std::string& name,
                              std::optional<std::int64_t>& bytes, const std::string& help,
                              std::int64_t smallest) {
  const auto take = [name, &bytes, smallest](const std::string& text) {
    bytes = parse_bytes(text);
    if (bytes && *bytes >= smallest) return;
    throw CLI::ValidationError(name, fmt::format("\"{}\" is no size of {} B or more; expected a "
                                                 "number with a suffix, such as 512MiB, 79.18GiB, "
                                                 "80GB",
                                                 printable(text), smallest));
  };
  return command.add_option_function<std::string>(name, take, help)->type_name("SIZE");
}

CLI::Option* add_microseconds_option(CLI::App& command, const std::string& name, std::int64_t& ns,
                                     const std::string& help) {
  const auto take = [name, &ns](const std::string& text) {
    const auto value = parse_microseconds(text);
    if (!value) {
      throw CLI::ValidationError(
          name, fmt::format("\"{}\" is not a time; expected microseconds 0 .. 1000000000 with at "
                            "most three decimals, such as 20000 or 0.5",
                            printable(text)));
    }
    ns = *value;
  };
  return command.add_option_function<std::string>(name, take, help)
      ->type_name("US")
      ->default_str(ns % 1000 == 0 ? fmt::format("{}", ns / 1000)
                                   : fmt::format("{}.{:03}", ns / 1000, ns % 1000));
}

std::optional<HttpAddress> parse_http_address(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const std::string_view number = text.substr(colon + 1);
  if (host.starts_with('[')) {
    if (!host.ends_with(']')) return std::nullopt;
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != host.npos) {
    return std::nullopt;  // an IPv6 address needs its brackets
  }
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), port);
  if (host.empty() || number.empty() || error != std::errc{} ||
      end != number.data() + number.size()) {
    return std::nullopt;
  }
  return HttpAddress{std::string(host), port};
}

std::optional<std::string> parse_http_url(std::string_view text) {
  if (text.ends_with('/')) text.remove_suffix(1);
  const auto is_of_no_host = [](unsigned char c) { return c <= ' ' || c == 0x7f; };
  if (text.find_first_of("?#@\\") != text.npos || std::ranges::any_of(text, is_of_no_host)) {
    return std::nullopt;
  }
  if (std::ranges::count(text, '/') != 2) return std::nullopt;  // a path
  std::string url(text);
  if (url.starts_with("https://")) {
    const std::string_view host = text.substr(8);
    const bool has_port = host.rfind(':') != host.npos && !host.ends_with(']');
    if (!has_port) url += ":443";
    return parse_http_address(std::string_view(url).substr(8)) ? std::optional(url) : std::nullopt;
  }
  if (!url.starts_with("http://")) return std::nullopt;
  return parse_http_address(text.substr(7)) ? std::optional(url) : std::nullopt;
}

std::optional<std::string> read_token(const Console& console, const std::string& path) {
  std::string token;
  if (path.empty()) return token;
  struct stat file_status {};
  if (::stat(path.c_str(), &file_status) == 0 && S_ISREG(file_status.st_mode) &&
      (file_status.st_mode & (S_IROTH | S_IWOTH)) != 0) {
    console.error(
        fmt::format("--http-token-file {}: everybody on this machine can {} it (mode {:04o})",
                    printable(path), (file_status.st_mode & S_IROTH) != 0 ? "read" : "change",
                    file_status.st_mode & 07777),
        "a file for its owner, or its group, alone", fmt::format("chmod 600 {}", printable(path)));
    return std::nullopt;
  }
  std::ifstream file(path);
  std::array<char, kMaxTokenBytes + 1> line{};
  if (file.getline(line.data(), line.size())) {
    token = line.data();
    while (token.ends_with('\r') || token.ends_with(' ')) token.pop_back();
    if (!token.empty()) return token;
  }
  console.error(
      fmt::format("--http-token-file {}: cannot be read, or its first line is empty or too long",
                  printable(path)),
      fmt::format("a file whose first line is the token, of less than {} bytes", kMaxTokenBytes),
      "");
  return std::nullopt;
}

}  // namespace kvarena::tools
