#pragma once

/// @file
/// Checks whether bytes are UTF-8 text. Pure functions.

#include <cstddef>
#include <string_view>

namespace kvarena {

/// Returns the length in bytes of the UTF-8 sequence at the begin of `text`. 0 when it is empty,
/// cut, overlong, a surrogate, or past U+10FFFF (Unicode 15, table 3-7).
constexpr std::size_t utf8_length(std::string_view text) noexcept {
  if (text.empty()) return 0;
  const auto byte = [&](std::size_t i) -> unsigned {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto follows = [&](std::size_t i) { return byte(i) >= 0x80 && byte(i) <= 0xbf; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4 || !follows(1)) return 0;
  if (first < 0xe0) return 2;
  if (!follows(2)) return 0;
  if (first < 0xf0) {
    const bool overlong = first == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = first == 0xed && byte(1) > 0x9f;
    return overlong || surrogate ? 0 : 3;
  }
  const bool overlong = first == 0xf0 && byte(1) < 0x90;
  const bool past_the_end = first == 0xf4 && byte(1) > 0x8f;
  return overlong || past_the_end || !follows(3) ? 0 : 4;
}

/// Returns the character of a sequence that utf8_length accepts whole.
constexpr char32_t utf8_character(std::string_view sequence) noexcept {
  constexpr unsigned kFirstMasks[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  char32_t character = 0;
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    const unsigned mask = i == 0 ? kFirstMasks[sequence.size()] : 0x3fU;
    character = character << 6U | (static_cast<unsigned char>(sequence[i]) & mask);
  }
  return character;
}

/// Returns the place of the first byte that is not part of UTF-8, or text.size(). O(size).
constexpr std::size_t utf8_end(std::string_view text) noexcept {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_length(text.substr(at, 4));
    if (length == 0) return at;
    at += length;
  }
  return at;
}

static_assert(utf8_character("\xe2\x80\xae") == 0x202e && utf8_character("a") == 'a');
static_assert(utf8_end("a\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80") == 10);
static_assert(utf8_end("a\xc0\x80") == 1 && utf8_end("\xed\xa0\x80") == 0);
static_assert(utf8_end("\xf4\x90\x80\x80") == 0 && utf8_end("ab\xe2\x82") == 2);

}  // namespace kvarena
