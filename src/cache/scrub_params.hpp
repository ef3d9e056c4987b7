#pragma once

/// @file
/// Where a scrub writes: the planes of a pool, or of one part of its groups, as the scrub kernels
/// take them.

#include "kernels/params.h"
#include "kvarena/allocator/arena.hpp"

#include <vector>

namespace kvarena {

/// The bytes that a scrub of a page counts in: blocks of several groups have a multiple of these.
inline constexpr std::int32_t kPageUnit = 1024;

/// Returns the params of a scrub of the pool, without a list. The layers of `arena` are uniform.
kernels::ScrubParams scrub_params(const Arena& arena) noexcept;

/// Returns the params of the scrubs of a pool of groups, without lists. First those of pages, whose
/// tokens have kPageUnit bytes, then those of each part: one for K and V of all its layers, and one
/// each for their index and for the scales of tokens where there are such. Throws std::bad_alloc.
std::vector<std::vector<kernels::ScrubParams>> group_scrub_params(const Arena& arena);

}  // namespace kvarena
