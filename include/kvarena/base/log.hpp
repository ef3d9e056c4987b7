#pragma once

/// @file
/// Log lines of the library. The library writes no lines by default. An engine installs one
/// function and receives every line. spdlog formats the lines; this header does not show it.
/// Thread-safe.

#include "kvarena/base/export.hpp"

#include <cstdint>
#include <functional>
#include <string_view>

namespace kvarena {

/// Severity of a log line, lowest first.
enum class LogLevel : std::uint8_t { debug, info, warning, error, critical, off };

/// Receives one formatted line without a newline. The thread that logs calls it under a lock, so it
/// must not call back into the library. It must not throw.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

/// Sends every line of level `minimum` and above to `sink` from now on. An empty sink silences the
/// library. The library also stays silent when there is no memory for the first sink.
KVARENA_EXPORT void set_log_sink(LogSink sink, LogLevel minimum = LogLevel::info) noexcept;

}  // namespace kvarena
