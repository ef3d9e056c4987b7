#pragma once

/// @file
/// What this process occupies, and which sanitizer watches it.

#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace kvarena::test {

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;  ///< resident memory means little here
#else
inline constexpr bool kAddressSanitizer = false;  ///< resident memory means little where true
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;  ///< everything is 5 to 15 times slower
#else
inline constexpr bool kThreadSanitizer = false;   ///< everything is 5 to 15 times slower where true
#endif
/// Any sanitizer that changes cost by much: scale work down.
inline constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

/// Resident bytes of this process now.
inline std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total_pages = 0;
  std::int64_t resident_pages = 0;
  file >> total_pages >> resident_pages;
  return resident_pages * static_cast<std::int64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace kvarena::test
