#include "tools/quantity.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace kvarena::tools {
namespace {

__extension__ using Wide = __int128;

struct Decimal {
  Wide digits = 0;         // the number times 10^places
  std::int64_t scale = 1;  // 10^places
  std::string_view rest;   // behind the number
};

// At most 18 digits before the point and 9 behind it.
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
    const Wide scaled = number->digits * factor;
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

}  // namespace kvarena::tools
