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

/// Returns `text` as UTF-8 in one line without control sequences for a terminal. Each control
/// character (U+0000 to U+001F, U+007F to U+009F) and each byte that is not part of UTF-8 becomes
/// '?'. O(size).
inline std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text.substr(0, 4));
    const auto first = static_cast<unsigned char>(text[0]);
    const bool is_ascii_control = first < 0x20 || first == 0x7f;
    const bool is_c1_control = length == 2 && text.substr(0, 2) < "\xc2\xa0";
    if (length == 0 || is_ascii_control || is_c1_control) {
      out += '?';
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace kvarena
