#pragma once

/// @file
/// Numbers as text for people. Pure functions.

#include <cstdint>
#include <string>

namespace kvarena {

/// Returns the number with commas: "1,234,567".
inline std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  const std::size_t first = number < 0 ? 1 : 0;
  for (std::size_t at = text.size(); at > first + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

}  // namespace kvarena
