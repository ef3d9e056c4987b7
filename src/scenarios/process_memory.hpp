#pragma once

/// @file
/// What this process occupies, as the operating system counts it. Any thread.

#include <cstdint>

namespace kvarena::replay::pressure {

/// Resident bytes of this process now (/proc/self/statm); 0 where nobody tells.
std::int64_t resident_bytes();

}  // namespace kvarena::replay::pressure
