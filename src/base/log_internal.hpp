#pragma once

/// @file
/// Logging inside the library: `log_line(LogLevel::warning, "arena of {} bytes", n)`. A line is
/// formatted only when a sink listens at its level. Thread-safe. Exported for the project's other
/// libraries (kvarena_health).

#include "base/excerpt.hpp"
#include "kvarena/base/export.hpp"
#include "kvarena/base/log.hpp"

#include <spdlog/fmt/fmt.h>

#include <string_view>
#include <utility>

namespace kvarena {

/// Returns whether a line of `level` would reach the sink. One relaxed atomic load.
KVARENA_EXPORT bool log_enabled(LogLevel level) noexcept;
/// Passes a finished line to the sink.
KVARENA_EXPORT void log_text(LogLevel level, std::string_view message) noexcept;

/// Passes the line that `make()` returns to the sink. When there is no memory, a note takes its
/// place.
template <class Make>
void log_made(LogLevel level, Make make) noexcept {
  if (!log_enabled(level)) return;
  try {
    log_text(level, make());
  } catch (...) {
    log_text(level, "a line is missing here: out of memory");
  }
}

/// Formats a line (fmt syntax) and passes it to the sink. The arguments are made before the call;
/// use log_made when making them takes memory and nothing may throw.
template <class... Args>
void log_line(LogLevel level, fmt::format_string<Args...> format, Args&&... args) noexcept {
  log_made(level, [&] { return fmt::format(format, std::forward<Args>(args)...); });
}

/// The name of an object behind a noun in a log line: " of NAME", or nothing without a name.
struct OfObject {
  std::string_view name;
};

}  // namespace kvarena

/// Formats an OfObject, with what could break the line replaced.
template <>
struct fmt::formatter<kvarena::OfObject> {
  constexpr auto parse(format_parse_context& context) { return context.begin(); }
  auto format(const kvarena::OfObject& object, format_context& context) const {
    if (object.name.empty()) return context.out();
    return fmt::format_to(context.out(), " of {}", kvarena::printable(object.name));
  }
};
