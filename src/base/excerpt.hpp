#pragma once

/// @file
/// `excerpt_of`: bytes from outside, made fit for a message. A pure function.

#include <cstddef>
#include <string>
#include <string_view>

namespace kvarena {

/// `text` in quotes, control characters and bytes past ASCII written as \xNN, cut after
/// `max_bytes`.
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

}  // namespace kvarena
