#pragma once

/// @file
/// Where the library's log lines go. By default nowhere: a library never prints by itself. An
/// engine installs one function and receives every line; formatting is spdlog's, behind this
/// header. Thread-safe.

#include "kvarena/base/export.hpp"

#include <cstdint>
#include <functional>
#include <string_view>

namespace kvarena {

/// Severity of a log line, lowest first.
enum class LogLevel : std::uint8_t { debug, info, warning, error, critical, off };

/// Receives one formatted line without a newline. Called under a lock, from the thread that logs:
/// it must not call back into the library. Must not throw.
using LogSink = std::function<void(LogLevel level, std::string_view message)>;

/// Sends every line of `minimum` and above to `sink` from now on; an empty sink silences the
/// library, and so does want of memory for the first sink.
KVARENA_EXPORT void set_log_sink(LogSink sink, LogLevel minimum = LogLevel::info) noexcept;

}  // namespace kvarena
