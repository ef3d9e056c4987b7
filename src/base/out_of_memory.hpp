#pragma once

/// @file
/// What calls answer where the machine has no memory for them: nothing throws across the API.

#include "kvarena/base/status.hpp"

#include <string>

namespace kvarena {

/// How much was wanted is not known.
constexpr Status out_of_memory() noexcept { return exhausted(Resource::host_memory, 1, 0); }

/// The text where there is no memory for one: short enough for a string without the heap.
inline std::string out_of_memory_text() noexcept { return "(out of memory)"; }

}  // namespace kvarena
