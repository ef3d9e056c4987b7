#pragma once

/// @file
/// Numbers from the environment: seeds, and how long and how hard tests work.

#include <cstdint>
#include <cstdlib>

namespace kvarena::test {

/// The number in environment variable `name`, or `fallback` when it is absent or not a number.
inline std::uint64_t number_from_environment(const char* name, std::uint64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const std::uint64_t number = std::strtoull(text, &end, 0);
  return *end == '\0' ? number : fallback;
}

}  // namespace kvarena::test
