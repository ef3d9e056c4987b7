#pragma once

/// @file
/// `excerpt_of` and `printable`: make bytes from outside fit for a message or a terminal. Pure
/// functions.

#include "base/utf8.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace kvarena {

/// Returns `text` in quotes, cut after `max_bytes`. Control characters and bytes past ASCII are
/// written as \xNN.
inline std::string excerpt_of(std::string_view text, std::size_t max_bytes = 40) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7e) {
      out += "\\x";
      out += kDigits[byte / 16];
      out += kDigits[byte % 16];
    } else {
      out += c;
    }
  }
  out += '"';
  if (text.size() > max_bytes) out += "...";
  return out;
}

/// Whether a character is invisible and can end a line or change how others are shown: Unicode 15's
/// general categories Cf, Zl and Zp.
constexpr bool is_format_character(char32_t c) noexcept {
  constexpr struct {
    char32_t first, last;
  } kRanges[] = {{0xad, 0xad},       {0x600, 0x605},     {0x61c, 0x61c},     {0x6dd, 0x6dd},
                 {0x70f, 0x70f},     {0x890, 0x891},     {0x8e2, 0x8e2},     {0x180e, 0x180e},
                 {0x200b, 0x200f},   {0x2028, 0x202e},   {0x2060, 0x2064},   {0x2066, 0x206f},
                 {0xfeff, 0xfeff},   {0xfff9, 0xfffb},   {0x110bd, 0x110bd}, {0x110cd, 0x110cd},
                 {0x13430, 0x1343f}, {0x1bca0, 0x1bca3}, {0x1d173, 0x1d17a}, {0xe0001, 0xe0001},
                 {0xe0020, 0xe007f}};
  for (const auto& range : kRanges) {
    if (c >= range.first && c <= range.last) return true;
  }
  return false;
}

/// Returns `text` as UTF-8 in one line without control sequences for a terminal. Each control
/// character (U+0000 to U+001F, U+007F to U+009F), each format character and each byte that is not
/// part of UTF-8 becomes '?'. O(size).
inline std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text.substr(0, 4));
    const auto first = static_cast<unsigned char>(text[0]);
    const bool is_ascii_control = first < 0x20 || first == 0x7f;
    const bool is_c1_control = length == 2 && text.substr(0, 2) < "\xc2\xa0";
    if (length == 0 || is_ascii_control || is_c1_control ||
        is_format_character(utf8_character(text.substr(0, length)))) {
      out += '?';
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace kvarena
