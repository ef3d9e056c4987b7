#pragma once

/// @file
/// What the library says to Python without waiting for it.

#include <cstdint>
#include <string>

#include "core.hpp"

namespace kvarena::python {

/// A line of the log, a violation, or a call of health.
struct Line {
  const char* kind;      ///< "log", "violation", "unhealthy" or "pressure"
  std::int32_t level;    ///< of a log line; of pressure, 16 * from + to
  std::string text;      ///< the line
  std::string name;      ///< of the object or reason
  std::uint64_t target;  ///< the monitor's number, for health
};

/// Puts a line into the queue; past its size it is counted and dropped. Any thread, without GIL.
void push_line(Line line);

}  // namespace kvarena::python
