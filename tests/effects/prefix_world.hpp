#pragma once

/// @file
/// The world of prefix pools: an engine that keeps its block tables itself. Its sequences find,
/// fork, cut, overwrite and release blocks that others have written; it tells the pool what it has
/// done, or forgets to.

#include "effects/program.hpp"

namespace kvarena::test {

/// The world.
const World& prefix_world();

}  // namespace kvarena::test
