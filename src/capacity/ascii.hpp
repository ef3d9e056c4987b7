#pragma once

/// @file
/// Names are compared without regard to the case of letters. Pure functions.

#include <algorithm>
#include <string_view>

namespace kvarena::capacity {

/// Whether two names differ in nothing but the case of ASCII letters.
constexpr bool same_letters(std::string_view a, std::string_view b) noexcept {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [lower](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace kvarena::capacity
