#pragma once

/// @file
/// Comparison of names with letter case ignored. Pure functions.

#include <algorithm>
#include <string_view>

namespace kvarena::capacity {

/// Returns whether two names are equal when the case of ASCII letters is ignored.
constexpr bool same_letters(std::string_view a, std::string_view b) noexcept {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [lower](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace kvarena::capacity
