#pragma once

/// @file
/// The world of steps: block tables, mirrored to a device by steps that are staged in a ring and
/// launched; launches run late, and some are lost.

#include "effects/program.hpp"

namespace kvarena::test {

/// The world.
const World& step_world();

}  // namespace kvarena::test
