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

/// Formats (fmt syntax) and hands the line to the sink.
template <class... Args>
void log_line(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_text(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvarena
