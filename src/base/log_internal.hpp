#pragma once

/// @file
/// The library's own way to log: `log_line(LogLevel::warning, "arena of {} bytes", n)`. Formatting
/// happens only when a sink listens at that level. Thread-safe. Exported for the project's other
/// libraries (kvarena_health).

#include "kvarena/base/export.hpp"
#include "kvarena/base/log.hpp"

#include <spdlog/fmt/fmt.h>

#include <utility>

namespace kvarena {

/// Whether a line of `level` would reach the sink. One relaxed atomic load.
KVARENA_EXPORT bool log_enabled(LogLevel level) noexcept;
/// Hands a finished line to the sink.
KVARENA_EXPORT void log_text(LogLevel level, std::string_view message) noexcept;

/// Hands the line that `make()` returns to the sink; a note in its place where there is no memory.
template <class Make>
void log_made(LogLevel level, Make make) noexcept {
  if (!log_enabled(level)) return;
  try {
    log_text(level, make());
  } catch (...) {
    log_text(level, "a line is missing here: out of memory");
  }
}

/// Formats (fmt syntax) and hands the line to the sink. What is formatted is made before the call:
/// where that takes memory and nothing may throw, log_made.
template <class... Args>
void log_line(LogLevel level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  log_made(level, [&] { return fmt::format(format, std::forward<Args>(args)...); });
}

}  // namespace kvarena
