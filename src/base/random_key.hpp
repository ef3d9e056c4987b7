#pragma once

/// @file
/// A key from the operating system, for hashes whose collisions nobody may plan. It decides nothing
/// that can be seen.

#include "kvarena/base/result.hpp"

#include <array>
#include <cstdint>

namespace kvarena {

/// Returns 128 random bits, not all zero, or io_error with errno.
Result<std::array<std::uint64_t, 2>> draw_key() noexcept;

}  // namespace kvarena
