#pragma once

/// @file
/// The answers of calls when the machine has no memory for them. Nothing throws across the API.

#include "kvarena/base/status.hpp"

#include <string>

namespace kvarena {

/// Returns the Status of a failed allocation whose size is unknown.
constexpr Status out_of_memory() noexcept { return exhausted(Resource::host_memory, 1, 0); }

/// Returns the text that replaces a text for which there is no memory. It is short enough for a
/// string without heap memory.
inline std::string out_of_memory_text() noexcept { return "(out of memory)"; }

}  // namespace kvarena
