#pragma once

/// @file
/// The world of caches: several KvCaches on two host devices, with real bytes, streams that run by
/// hand in any order, and calls of the device that fail.

#include "effects/program.hpp"

namespace kvarena::test {

/// The world.
const World& cache_world();
/// Plays a program in it. With `expects_scrubbing`, recycled slots may hold nothing of another
/// owner.
std::optional<Failure> play_caches(const Program& program, std::string* story,
                                   bool expects_scrubbing);

}  // namespace kvarena::test
